"""Shared by all figures: a sheet in inches, plain axes, legends, points with their intervals, and PNG bytes."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whet.report.numbers import number
from whet.report.templating import printable

PALETTE = ("#2f6db5", "#d9772b", "#3f9470", "#8a63b3", "#6b7280")  # told apart by colour-blind readers too
INK, QUIET, GRID, AXIS = "#1f2933", "#6b7684", "#e6e9ed", "#c3cad2"
STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif", "DejaVu Sans"],  # the second one has the glyphs that the first may lack
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": QUIET, "borderpad": 0, "borderaxespad": 0}
LEGEND |= {"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.1}
ROUND = [1, 2, 2.5, 5, 10]  # what the distance between two ticks may begin with
MARKED = 30  # a curve with at most this many points shows each of them
LEFT = 0.62  # inches at the left edge
DOTS_PER_INCH = 150


@contextmanager
def sheet(width: float, height: float, *, title: str, subtitle: str) -> Iterator[Figure]:
    """An empty figure of so many inches with its heading, to be drawn on and made a PNG within the block.

    Without pyplot: no display is needed and the caller's own plots stay untouched.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(LEFT / width, 1 - 0.4 / height, literal(title), size=15, weight="bold", color=INK, va="center")
        figure.text(LEFT / width, 1 - 0.7 / height, literal(subtitle), size=9.5, color=QUIET, va="center")
        yield figure


def axes_at(figure: Figure, *, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)


def frame(axes: Axes, *, title: str, unit: str = "", x: str = "", grid: str = "y", above: float = 8) -> None:
    """Plain axes with a heading at the left, `above` points higher, and the unit of each axis."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(AXIS)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=8, length=0, pad=4)
    axes.set_xlabel(literal(x), size=8.5, color=QUIET, labelpad=3)
    heading = axes.set_title(literal(title), loc="left", size=10.5, weight="bold", color=INK, pad=above)
    beside: dict[str, Any] = {"xycoords": heading, "textcoords": "offset points", "va": "bottom"}
    axes.annotate(literal(unit), (1, 0), xytext=(6, 0.4), size=8.5, color=QUIET, annotation_clip=False, **beside)


def legend_above(axes: Axes, count: int) -> None:
    """The names of the lines, so many in one row between the heading and the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.012, 1.03), ncols=count, **LEGEND)


def plain_numbers(axes: Axes, *, x: bool = True, y: bool = True, ticks: int = 5, show: Any = number) -> None:
    """Few ticks, at round numbers, written as the report writes numbers."""
    for wanted, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if wanted:
            axis.set_major_locator(MaxNLocator(ticks, steps=ROUND))
            axis.set_major_formatter(FuncFormatter(lambda value, _: show(round(value, 9))))


def whole_steps(axes: Axes) -> None:
    """Ticks of an axis of steps, which are whole numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def whisker(axes: Axes, *, x: tuple[float, float], y: tuple[float, float], colour: str, width: float = 1.6) -> None:
    """The line of an interval."""
    axes.plot(x, y, color=colour, linewidth=width, alpha=0.55, solid_capstyle="butt", zorder=2.5)


def beside(axes: Axes, text: str, at: tuple[float, float]) -> None:
    """A number to the right of a point, readable also where a line passes behind it."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
    place: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "zorder": 4}
    axes.annotate(text, at, size=8.5, color=INK, bbox=box, annotation_clip=False, **place)


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
