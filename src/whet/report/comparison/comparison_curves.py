"""curves.png of a comparison: all methods' means in one picture, then each method with its band on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whet.evaluate.statistics import clipped, mean_interval
from whet.report.comparison.results import MethodResult
from whet.report.run.curves import DOTS_PER_INCH, GRID, INK, MARKED, QUIET, ROUND, STYLE, literal, png

# Okabe & Ito 2008 without the yellow, which white paper swallows; beyond seven methods the dashes tell them apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98100", "#56b4e9", "#4d4d4d")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.6)), (0, (1.4, 1.4)))
OTHERS = "#d3d8de"  # the other methods behind the one that a small picture is about
COLUMNS = 4
LABEL_GAP = 5.4  # percentage points between two labels at the ends of the lines
WIDTH, OVERVIEW, ROW = 11.6, 3.9, 2.2  # inches


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """The mean of one method over its finished seeds, in per cent."""

    method: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]  # the band; empty where there is none
    high: tuple[float, ...]
    seeds: int

    @property
    def band(self) -> str:
        """What the band is, in words."""
        if self.seeds == 1:
            return "1 seed, no band"
        return f"band: {'95 % interval' if self.seeds > 2 else 'lowest to highest'}, {self.seeds} seeds"


def mean_curve(result: MethodResult) -> Curve:
    """Mean and band at the steps that all finished seeds evaluated: t interval from three seeds on, range for two."""
    runs = [dict(zip(seed.curve.steps, seed.curve.values, strict=True)) for seed in result.finished]
    steps = tuple(sorted(set.intersection(*map(set, runs)))) if runs else ()
    values = [[run[step] for run in runs] for step in steps]
    intervals = [clipped(mean_interval(found)) for found in values]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    if len(runs) > 2:
        low, high = tuple(i.low for i in intervals), tuple(i.high for i in intervals)
    elif len(runs) == 2:
        low, high = tuple(map(min, values)), tuple(map(max, values))
    return Curve(
        method=result.method,
        steps=steps,
        mean=tuple(100 * i.mean for i in intervals),
        low=tuple(100 * value for value in low),
        high=tuple(100 * value for value in high),
        seeds=len(runs),
    )


def comparison_curves(results: Sequence[MethodResult], *, target: float, title: str, subtitle: str) -> bytes:
    """The figure as PNG bytes; a method without a finished run has no curve."""
    curves = [curve for curve in map(mean_curve, results) if curve.steps]
    rows = math.ceil(len(curves) / COLUMNS)
    height = 1.15 + OVERVIEW + 0.55 + ROW * rows
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.62 / WIDTH, 1 - 0.4 / height, literal(title), size=15, weight="bold", color=INK, va="center")
        figure.text(0.62 / WIDTH, 1 - 0.7 / height, literal(subtitle), size=9.5, color=QUIET, va="center")
        if not curves:
            figure.text(0.5, 0.4, "no run finished", size=11, color=QUIET, ha="center", va="center")
            return png(figure)
        top = _place(figure, left=0.62, width=WIDTH - 2.9, top=1.15, height=OVERVIEW - 0.55)
        _overview(top, curves, target)
        cell = (WIDTH - 0.62 - 0.3) / COLUMNS
        for index in range(len(curves)):
            above = 1.15 + OVERVIEW + 0.55 + ROW * (index // COLUMNS)
            left = 0.62 + cell * (index % COLUMNS)
            axes = _place(figure, left=left, width=cell - 0.42, top=above, height=ROW - 0.9)
            _alone(axes, index, curves, target)
        return png(figure)


def spread(places: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """The places moved little, until each is at least `gap` from the next and all are in [low, high]; order is kept."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[tuple[float, int]] = []  # centre and size of neighbours that touch
    for index in order:
        centre, size = places[index], 1
        while groups and centre - (size - 1) * gap / 2 < groups[-1][0] + (groups[-1][1] + 1) * gap / 2:
            before, count = groups.pop()
            centre, size = (before * count + centre * size) / (count + size), count + size
        groups.append((centre, size))
    moved = [centre + (i - (size - 1) / 2) * gap for centre, size in groups for i in range(size)]
    moved = [min(place, high - (len(moved) - 1 - i) * gap) for i, place in enumerate(moved)]
    moved = [max(place, low + i * gap) for i, place in enumerate(moved)]
    return [place for _, place in sorted(zip(order, moved, strict=True))]


def _overview(axes: Axes, curves: Sequence[Curve], target: float) -> None:
    for index, curve in enumerate(curves):
        _line(axes, curve, index, width=1.9)
    _frame(axes, target, curves)
    axes.set_title("Mean over seeds", loc="left", size=10.5, weight="bold", color=INK, pad=10)
    last = max(curve.steps[-1] for curve in curves)
    # Best at the top also where the ends are equal: the sort of `spread` keeps the order of equal places.
    names = list(reversed(list(enumerate(curves))))
    gap = min(LABEL_GAP, 100 / len(curves))
    places = spread([curve.mean[-1] for _, curve in names], gap, low=0, high=100)
    for (index, curve), place in zip(names, places, strict=True):
        colour = _style(index)["color"]
        reach = axes.get_xlim()[1]
        elbow = [curve.steps[-1], reach + 0.010 * last, reach + 0.022 * last]
        ends = [curve.mean[-1], place, place]
        axes.plot(elbow, ends, color=colour, linewidth=0.7, alpha=0.6, clip_on=False)
        sample = [reach + 0.026 * last, reach + 0.062 * last]
        axes.plot(sample, [place, place], **_style(index), linewidth=1.9, clip_on=False)
        label = f"{literal(curve.method)}  {curve.mean[-1]:.1f}"
        axes.text(reach + 0.070 * last, place, label, size=8.5, color=INK, va="center")


def _alone(axes: Axes, index: int, curves: Sequence[Curve], target: float) -> None:
    curve = curves[index]
    for other in curves:
        if other is not curve:
            axes.plot(other.steps, other.mean, color=OTHERS, linewidth=0.9)
    if curve.low:
        axes.fill_between(curve.steps, curve.low, curve.high, color=_style(index)["color"], alpha=0.2, linewidth=0)
    _line(axes, curve, index, width=1.7)
    _frame(axes, target, curves)
    axes.set_title(literal(curve.method), loc="left", size=9.5, weight="bold", color=INK, pad=16)
    axes.text(0, 1.06, curve.band, transform=axes.transAxes, size=7.5, color=QUIET)


def _line(axes: Axes, curve: Curve, index: int, *, width: float) -> None:
    # Dots between dashes would hide them.
    marker = "o" if len(curve.steps) <= MARKED and index < len(COLOURS) else ""
    axes.plot(curve.steps, curve.mean, **_style(index), linewidth=width, marker=marker, markersize=width * 1.5)


def _style(index: int) -> dict[str, Any]:
    dashes = DASHES[index // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dashes}


def _frame(axes: Axes, target: float, curves: Sequence[Curve]) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c3cad2")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, labelsize=8, length=0, pad=4)
    axes.axhline(100 * target, color=QUIET, linewidth=0.8, linestyle=(0, (2, 3)))
    last = max(curve.steps[-1] for curve in curves)
    axes.set_xlim(-0.02 * last, 1.02 * last if last else 1)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("step", size=8, color=QUIET, labelpad=2)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=ROUND, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))


def _place(figure: Figure, *, left: float, width: float, top: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    whole_width, whole_height = figure.get_size_inches()
    box = (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(box)
