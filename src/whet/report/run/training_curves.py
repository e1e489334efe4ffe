"""training_curves.png: small multiples, one per panel."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from whet.report.figures import (
    LEFT,
    MARKED,
    PALETTE,
    QUIET,
    ROUND,
    frame,
    legend_above,
    literal,
    png,
    sheet,
    whole_steps,
)
from whet.report.numbers import number
from whet.report.run.panels import Line, Panel
from whet.report.series import thin

COLUMNS = 3
BUCKETS = 400  # of the faint raw curve: about one per two pixels


def training_curves(panels: Sequence[Panel], *, title: str, subtitle: str) -> bytes:
    columns = max(1, min(COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    width, height = max(6.4, 4.3 * columns), 2.55 * rows + 1.05
    with sheet(width, height, title=title, subtitle=subtitle) as figure:
        if not panels:
            figure.text(0.5, 0.4, "no metrics yet", size=11, color=QUIET, ha="center", va="center")
        # Margins in inches: the same for any number of rows.
        edges = {"left": LEFT / width, "right": 1 - 0.3 / width, "top": 1 - 1.4 / height, "bottom": 0.55 / height}
        grid = figure.add_gridspec(rows, columns, hspace=0.66, wspace=0.24, **edges)
        # All headings at one height, above the legend if any panel has one.
        above = 20 if any(len(panel.lines) > 1 for panel in panels) else 8
        for index, panel in enumerate(panels):
            _draw(figure.add_subplot(grid[index // columns, index % columns]), panel, above)
        return png(figure)


def _draw(axes: Axes, panel: Panel, above: float) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    if len(panel.lines) > 1:
        legend_above(axes, len(panel.lines))
    frame(axes, title=panel.title, unit=panel.unit, x="step", above=above)
    whole_steps(axes)
    axes.margins(x=0.02)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
        _limits(axes, panel)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _draw_line(axes: Axes, line: Line) -> None:
    colour = PALETTE[line.colour % len(PALETTE)]
    steps, values = line.curve.steps, line.curve.values
    if line.low is not None and line.high is not None:
        axes.fill_between(steps, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.faint is not None:
        raw = thin(line.faint, BUCKETS)
        axes.plot(raw.steps, raw.values, color=colour, alpha=0.22, linewidth=0.8)
    marker = "o" if len(steps) <= MARKED else ""
    axes.plot(steps, values, color=colour, linewidth=1.7, marker=marker, markersize=3.2, label=literal(line.label))


def _limits(axes: Axes, panel: Panel) -> None:
    low, high = axes.get_ylim()
    if panel.floor is not None:
        low = panel.floor
    if panel.ceiling is not None:
        high = panel.ceiling
    room = 0.02 * (high - low)  # a line at the edge is drawn in full
    axes.set_ylim(low - room, high + room if high > low else low + 1)
