"""Building blocks of all figures: canvas in inches, axes, legends, intervals, PNG bytes."""

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whet.number_format import number
from whet.report.formatting import printable

PALETTE = ("#2f6db5", "#d9772b", "#3f9470", "#8a63b3", "#6b7280")  # also distinguishable with colour blindness
INK, QUIET, GRID, AXIS = "#1f2933", "#6b7684", "#e6e9ed", "#c3cad2"
STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif", "DejaVu Sans"],  # the second has glyphs that the first may lack
    "font.sans-serif": ["Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "labelcolor": QUIET, "borderpad": 0, "borderaxespad": 0}
LEGEND |= {"handlelength": 1.0, "handletextpad": 0.5, "columnspacing": 1.1}
ROUND = [1, 2, 2.5, 5, 10]  # allowed leading digits of the distance between ticks
MARKED = 30  # curves with at most this many points show each of them
LEFT = 0.62  # left margin in inches
DOTS_PER_INCH = 150


@contextmanager
def sheet(width: float, height: float, *, title: str, subtitle: str) -> Iterator[Figure]:
    """An empty figure (in inches) with its heading; draw on it and save it as PNG within the block.

    Does not use pyplot: needs no display and leaves the caller's plots alone.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(LEFT / width, 1 - 0.4 / height, literal(title), size=15, weight="bold", color=INK, va="center")
        figure.text(LEFT / width, 1 - 0.7 / height, literal(subtitle), size=9.5, color=QUIET, va="center")
        yield figure


@contextmanager
def grid(count: int, columns: int, *, height: float, title: str, subtitle: str) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with `count` axes in rows of `columns`, each row `height` inches high."""
    rows = max(1, math.ceil(count / columns))
    width, total = max(6.4, 4.3 * columns), height * rows + 1.05
    with sheet(width, total, title=title, subtitle=subtitle) as figure:
        # Margins in inches: the same for any number of rows.
        edges = {"left": LEFT / width, "right": 1 - 0.3 / width, "top": 1 - 1.4 / total, "bottom": 0.55 / total}
        cells = figure.add_gridspec(rows, columns, hspace=0.66, wspace=0.24, **edges)
        yield figure, [figure.add_subplot(cells[index // columns, index % columns]) for index in range(count)]


def axes_at(figure: Figure, *, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a position in inches from the upper left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)


def frame(axes: Axes, *, title: str, unit: str = "", x: str = "", grid: str = "y", above: float = 8) -> None:
    """Plain axes with a left-aligned heading, `above` points higher, and the units of both axes."""
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
    """Legend in one row of `count` columns between heading and axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.012, 1.03), ncols=count, **LEGEND)


def plain_numbers(axes: Axes, *, x: bool = True, y: bool = True, ticks: int = 5, show: Any = number) -> None:
    """Few ticks at round numbers, formatted as in the rest of the report."""
    for wanted, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if wanted:
            axis.set_major_locator(MaxNLocator(ticks, steps=ROUND))
            axis.set_major_formatter(FuncFormatter(lambda value, _: show(round(value, 9))))


def whole_steps(axes: Axes) -> None:
    """Integer ticks for an axis of steps, and a narrow margin."""
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def whisker(axes: Axes, *, x: tuple[float, float], y: tuple[float, float], colour: str, width: float = 1.6) -> None:
    """The line of an interval."""
    axes.plot(x, y, color=colour, linewidth=width, alpha=0.55, solid_capstyle="butt", zorder=2.5)


def beside(axes: Axes, text: str, at: tuple[float, float]) -> None:
    """A number to the right of a point, legible above lines."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
    place: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "zorder": 4}
    axes.annotate(text, at, size=8.5, color=INK, bbox=box, annotation_clip=False, **place)


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Scripts without an installed font are drawn as boxes; the warning does not help.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def literal(text: str) -> str:
    """Text with $ escaped (no mathtext), and without a leading _, which would drop it from the legend."""
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
