"""data.png and data.html, a self-contained page of a survey."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from whet.data.explore import Survey
from whet.errors import RunFailed
from whet.report import figures as fig
from whet.report.dataset.survey import Bars, Histogram, Panel, length_rows, overview, survey_panels
from whet.report.formatting import number, percent, render
from whet.report.run.charts import HEIGHT, TOP, WIDTH, Bar, Chart, Scale, Stroke, joined, ticks
from whet.runs.logs import reason, write_atomic

COLUMNS = 3
NAMES = 84  # width of the bar labels, as in templates/chart.html


def write_survey(survey: Survey, found: Mapping[str, Any], directory: Path, *, title: str) -> tuple[Path, Path]:
    """Writes data.png and data.html into the directory; returns their paths."""
    panels = survey_panels(survey)
    loaded = survey.loaded
    about = [f"{len(loaded.rows):,} {loaded.kind}", f"format {loaded.format}", f"sha256 {loaded.digest[:12]}"]
    page = render(
        "dataset.html",
        title=title,
        facts=about,
        overview=overview(found),
        charts=[_histogram(panel) if isinstance(panel, Histogram) else _bars(panel) for panel in panels],
        lengths=length_rows(found),
        found=found,
    )
    picture_path, page_path = directory / "data.png", directory / "data.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(picture_path, survey_figure(panels, title=title, subtitle="   ".join(about)))
        write_atomic(page_path, page.encode())
    except OSError as error:
        raise RunFailed(f"cannot write into {directory}: {reason(error)}") from error
    return picture_path, page_path


def survey_figure(panels: Sequence[Panel], *, title: str, subtitle: str) -> bytes:
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))  # four panels as a square
    rows = math.ceil(len(panels) / columns)
    width, height = max(6.4, 4.3 * columns), 2.7 * rows + 1.0
    with fig.sheet(width, height, title=title, subtitle=subtitle) as figure:
        edges = {"left": fig.LEFT / width, "right": 1 - 0.3 / width, "top": 1 - 1.45 / height, "bottom": 0.55 / height}
        grid = figure.add_gridspec(rows, columns, hspace=0.62, wspace=0.24, **edges)
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            if isinstance(panel, Histogram):
                _draw_histogram(axes, panel)
            else:
                _draw_bars(axes, panel)
        return fig.png(figure)


def _draw_histogram(axes: Axes, panel: Histogram) -> None:
    edges = [panel.start + panel.width * place for place in range(panel.bins + 1)]
    for series in panel.series:
        colour = fig.PALETTE[series.colour % len(fig.PALETTE)]
        axes.stairs(series.shares, edges, color=colour, alpha=0.18, fill=True)
        axes.stairs(series.shares, edges, color=colour, linewidth=1.5, label=fig.literal(series.about))
    if panel.zero:
        axes.axvline(0, color=fig.INK, linewidth=0.9, linestyle=(0, (3, 3)))
    fig.legend_above(axes, len(panel.series))
    fig.frame(axes, title=panel.title, unit=panel.unit, above=20)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, panel.ceiling)
    fig.plain_numbers(axes, y=False, ticks=6)
    fig.plain_numbers(axes, x=False, ticks=4, show=percent)
    for is_open, place, side, words in (
        (panel.open_low, 0.0, "left", "and less"),
        (panel.open_high, 1.0, "right", "and more"),
    ):
        if is_open:  # the outermost bin holds all values beyond it
            axes.text(place, -0.22, words, transform=axes.transAxes, size=7.5, color=fig.QUIET, ha=side, style="italic")


def _draw_bars(axes: Axes, panel: Bars) -> None:
    names, shares = [fig.literal(name) for name, _ in panel.bars], [share for _, share in panel.bars]
    places = list(range(len(names)))
    axes.barh(places, shares, height=0.62, color=fig.PALETTE[0], alpha=0.75)
    for place, share in zip(places, shares, strict=True):
        axes.text(share + 0.02 * max(shares), place, percent(share), size=8, color=fig.INK, va="center")
    fig.frame(axes, title=panel.title, unit=panel.unit, above=20)
    axes.grid(visible=False)
    axes.set_yticks(places, names)
    axes.set_ylim(max(len(names), 3) - 0.4, -0.6)  # few bars are as thin as many
    axes.set_xlim(0, 1.15 * max(shares))
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _histogram(panel: Histogram) -> Chart:
    end = panel.start + panel.width * panel.bins
    scale = Scale(first=panel.start, last=end, low=0, high=panel.ceiling)
    strokes = []
    for series in panel.series:
        edges = [panel.start + panel.width * (place + side) for place in range(panel.bins) for side in (0, 1)]
        levels = [share for share in series.shares for _ in (0, 1)]
        outline = joined(scale.points([panel.start, *edges, end], [0, *levels, 0]))
        strokes.append(Stroke(colour=series.colour % 5, curve=outline, band=outline))
    return Chart(
        title=panel.title,
        unit=panel.unit,
        about=f"{panel.title}, {panel.unit}",
        keys=[(series.colour % 5, series.about, "") for series in panel.series],
        levels=[(scale.y(level), percent(level)) for level in ticks(0, panel.ceiling, 4)],
        ticks=[(scale.x(value), number(value)) for value in ticks(panel.start, end, 6)],
        strokes=strokes,
        zero=scale.x(0) if panel.zero and panel.start < 0 < end else None,
    )


def _bars(panel: Bars) -> Chart:
    room, most = WIDTH - NAMES - 60, max(share for _, share in panel.bars)
    height = min(26.0, (HEIGHT - TOP) / len(panel.bars))
    bars = [
        Bar(name=name, shown=percent(share), y=TOP + place * height, height=height, width=room * share / most)
        for place, (name, share) in enumerate(panel.bars)
    ]
    return Chart(title=panel.title, unit=panel.unit, about=f"{panel.title}, {panel.unit}", bars=bars)
