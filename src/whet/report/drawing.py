"""Shared by the figures of comparisons: a canvas in inches, plain axes, points with their intervals."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whet.report.numbers import number
from whet.report.run.curves import GRID, INK, QUIET, ROUND, literal

LEFT = 0.3  # inches at the left edge
DOTS_PER_INCH = 160


def canvas(width: float, height: float, *, title: str, subtitle: str) -> Figure:
    """An empty figure of so many inches with its heading; call it within the style."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(LEFT / width, 1 - 0.34 / height, literal(title), size=13.5, weight="bold", color=INK, va="center")
    figure.text(LEFT / width, 1 - 0.62 / height, literal(subtitle), size=9, color=QUIET, va="center")
    return figure


def axes_at(figure: Figure, *, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)


def frame(axes: Axes, *, title: str, x: str = "", y: str = "", grid: str = "y") -> None:
    """Quiet axes with a heading at the left, and the unit of each axis."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c3cad2")
    axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=8, length=0, pad=4)
    axes.set_xlabel(x, size=8.5, color=QUIET, labelpad=3)
    heading = axes.set_title(literal(title), loc="left", size=10, weight="bold", color=INK, pad=8)
    beside: dict[str, Any] = {"xycoords": heading, "textcoords": "offset points", "va": "bottom"}
    axes.annotate(literal(y), (1, 0), xytext=(6, 0.3), size=8.5, color=QUIET, annotation_clip=False, **beside)


def plain_numbers(axes: Axes, *, x: bool = True, y: bool = True, ticks: int = 5) -> None:
    """Few ticks, at round numbers, written as the report writes numbers."""
    for wanted, axis in ((x, axes.xaxis), (y, axes.yaxis)):
        if wanted:
            axis.set_major_locator(MaxNLocator(ticks, steps=ROUND))
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value, 9))))


def whisker(axes: Axes, *, x: tuple[float, float], y: tuple[float, float], colour: str, width: float = 1.6) -> None:
    """The line of an interval."""
    axes.plot(x, y, color=colour, linewidth=width, alpha=0.55, solid_capstyle="butt", zorder=2.5)


def beside(axes: Axes, text: str, at: tuple[float, float]) -> None:
    """A number to the right of a point, readable also where a line passes behind it."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}
    place: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "zorder": 4}
    axes.annotate(text, at, size=8.5, color=INK, bbox=box, annotation_clip=False, **place)
