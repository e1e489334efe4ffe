"""data.png: the panels of a survey as one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whet.report.dataset.survey_panels import Bars, Histogram, Panel
from whet.report.numbers import number, percent
from whet.report.run.curves import DOTS_PER_INCH, GRID, INK, PALETTE, QUIET, ROUND, STYLE, literal, png

COLUMNS = 3
AXIS = "#c3cad2"


def survey_figure(panels: Sequence[Panel], *, title: str, subtitle: str) -> bytes:
    """The figure as PNG bytes."""
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))  # four look best as a square
    rows = math.ceil(len(panels) / columns)
    width, height = max(6.4, 4.3 * columns), 2.7 * rows + 1.0
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.62 / width, 1 - 0.4 / height, literal(title), size=15, weight="bold", color=INK, va="center")
        figure.text(0.62 / width, 1 - 0.7 / height, literal(subtitle), size=9.5, color=QUIET, va="center")
        edges = {"left": 0.62 / width, "right": 1 - 0.3 / width, "top": 1 - 1.45 / height, "bottom": 0.55 / height}
        grid = figure.add_gridspec(rows, columns, hspace=0.62, wspace=0.24, **edges)
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            _heading(axes, panel)
            if isinstance(panel, Histogram):
                _histogram(axes, panel)
            else:
                _bars(axes, panel)
        return png(figure)


def _heading(axes: Axes, panel: Panel) -> None:
    title = axes.text(0, 1.18, panel.title, transform=axes.transAxes, size=10.5, weight="bold", color=INK)
    beside: dict[str, Any] = {"xycoords": title, "textcoords": "offset points", "va": "bottom"}
    axes.annotate(panel.unit, (1, 0), xytext=(6, 0.4), size=8.5, color=QUIET, **beside)


def _histogram(axes: Axes, panel: Histogram) -> None:
    edges = [panel.start + panel.width * number for number in range(panel.bins + 1)]
    for series in panel.series:
        colour = PALETTE[series.colour % len(PALETTE)]
        label = f"{series.label}, median {number(series.median)}"
        axes.stairs(series.shares, edges, color=colour, alpha=0.18, fill=True)
        axes.stairs(series.shares, edges, color=colour, linewidth=1.5, label=literal(label))
    if panel.zero:
        axes.axvline(0, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.012, 1.02),
        ncols=len(panel.series),
        **{"frameon": False, "fontsize": 8, "labelcolor": QUIET, "borderpad": 0, "borderaxespad": 0},
        **{"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.1},
    )
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.06 * max(share for series in panel.series for share in series.shares))
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=ROUND))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
    _quiet(axes)
    _open_ends(axes, panel)


def _open_ends(axes: Axes, panel: Histogram) -> None:
    """Says that the outermost bins hold all that lies beyond."""
    for is_open, place, side, words in (
        (panel.open_low, 0.0, "left", "and less"),
        (panel.open_high, 1.0, "right", "and more"),
    ):
        if is_open:
            axes.text(place, -0.22, words, transform=axes.transAxes, size=7.5, color=QUIET, ha=side, style="italic")


def _bars(axes: Axes, panel: Bars) -> None:
    names, shares = [literal(name) for name, _ in panel.bars], [share for _, share in panel.bars]
    places = list(range(len(names)))
    axes.barh(places, shares, height=0.62, color=PALETTE[0], alpha=0.75)
    for place, share in zip(places, shares, strict=True):
        axes.text(share + 0.02 * max(shares), place, percent(share), size=8, color=INK, va="center")
    axes.set_yticks(places, names)
    axes.set_ylim(max(len(names), 3) - 0.4, -0.6)  # few bars stay as thin as many
    axes.set_xlim(0, 1.15 * max(shares))
    axes.xaxis.set_visible(False)
    _quiet(axes)
    axes.spines["bottom"].set_visible(False)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(AXIS)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=8, length=0, pad=4)
