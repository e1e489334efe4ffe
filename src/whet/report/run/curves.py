"""training_curves.png: small multiples, one unit each, readable at ten steps and at ten thousand."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from whet.report.markup import printable
from whet.report.numbers import number
from whet.report.run.panels import Line, Panel
from whet.report.series import thin

PALETTE = ("#2f6db5", "#d9772b", "#3f9470", "#8a63b3", "#6b7280")  # told apart by colour-blind readers too
INK, QUIET, GRID = "#1f2933", "#6b7684", "#e6e9ed"
STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif", "DejaVu Sans"],  # the second one has the glyphs that the first may lack
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
}
COLUMNS = 3
ROUND = [1, 2, 2.5, 5, 10]  # what the distance between two ticks may begin with
MARKED = 30  # a curve with at most this many points shows each of them
BUCKETS = 400  # of a faint raw curve: about one per two pixels
DOTS_PER_INCH = 150


def training_curves(panels: Sequence[Panel], *, title: str, subtitle: str) -> bytes:
    """The figure as PNG bytes."""
    columns = max(1, min(COLUMNS, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    width, height = max(6.4, 4.3 * columns), 2.55 * rows + 1.05
    # Figure without pyplot: no display is needed and the caller's own plots stay untouched.
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.62 / width, 1 - 0.4 / height, literal(title), size=15, weight="bold", color=INK, va="center")
        figure.text(0.62 / width, 1 - 0.7 / height, literal(subtitle), size=9.5, color=QUIET, va="center")
        if not panels:
            figure.text(0.5, 0.4, "no metrics yet", size=11, color=QUIET, ha="center", va="center")
        grid = _grid(figure, rows, columns)
        # All headings stand at one height, above the legend where any panel has one.
        heading = 1.18 if any(len(panel.lines) > 1 for panel in panels) else 1.07
        for index, panel in enumerate(panels):
            _draw(figure.add_subplot(grid[index // columns, index % columns]), panel, heading=heading)
        return png(figure)


def png(figure: Figure) -> bytes:
    """The bytes of the picture."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that no installed font has is drawn as boxes; that is nothing to act on.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def literal(text: str) -> str:
    """Text in which a dollar sign begins no formula; a label with a leading _ would be left out of the legend."""
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _grid(figure: Figure, rows: int, columns: int) -> GridSpec:
    """Margins in inches, so that one row and five rows have the same air."""
    width, height = figure.get_size_inches()
    edges = {"left": 0.62 / width, "right": 1 - 0.3 / width, "top": 1 - 1.4 / height, "bottom": 0.55 / height}
    return figure.add_gridspec(rows, columns, hspace=0.66, wspace=0.24, **edges)


def _draw(axes: Axes, panel: Panel, *, heading: float) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    title = axes.text(0, heading, panel.title, transform=axes.transAxes, size=10.5, weight="bold", color=INK)
    beside: dict[str, Any] = {"xycoords": title, "textcoords": "offset points", "va": "bottom"}
    axes.annotate(panel.unit, (1, 0), xytext=(6, 0.4), size=8.5, color=QUIET, **beside)
    if len(panel.lines) > 1:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.012, 1.03),
            ncols=len(panel.lines),
            **{"frameon": False, "fontsize": 8, "labelcolor": QUIET, "borderpad": 0, "borderaxespad": 0},
            **{"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.1},
        )
    _frame(axes, panel)


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


def _frame(axes: Axes, panel: Panel) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c3cad2")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=8, length=0, pad=4)
    axes.set_xlabel("step", size=8, color=QUIET, labelpad=2)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.margins(x=0.02)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
        _limits(axes, panel)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _limits(axes: Axes, panel: Panel) -> None:
    low, high = axes.get_ylim()
    if panel.floor is not None:
        low = panel.floor
    if panel.ceiling is not None:
        high = panel.ceiling
    room = 0.02 * (high - low)  # a line at the edge is drawn whole
    axes.set_ylim(low - room, high + room if high > low else low + 1)
