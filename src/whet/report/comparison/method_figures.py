"""The pictures of a contest: who is better, at what distance from the start, and how it went on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from whet.report.comparison.method_curves import titles
from whet.report.comparison.methods import (
    START_COLOUR,
    Values,
    ends,
    judged_methods,
    marker,
    mean_text,
    style,
    truth_label,
)
from whet.report.drawing import LEFT, axes_at, beside, canvas, frame, plain_numbers, whisker
from whet.report.numbers import number, percent
from whet.report.run.curves import INK, QUIET, STYLE, literal, png
from whet.report.series import smooth, smoothing_window

WIDTH = 11.6  # inches
ROW = 0.42  # of a bar or a line in the overview
LEGEND_ROW = 0.23  # of a line of colours and names
TIE_COLOUR, LOSS_COLOUR = "#d5dae0", "#eef0f3"


def overview_figure(results: Values) -> bytes:
    """Reward, wins and length of every method, one line each: the best at the top, the start model at the bottom."""
    methods = judged_methods(results)
    names = [*(method["method"] for method in methods), results["start_name"]]
    height = 1.75 + ROW * len(names)
    label = min(2.4, 0.35 + 0.075 * max(map(len, names)))
    wins = results["start"]["wins"] is not None
    share = [4.0, 4.0, 2.2] if wins else [6.0, 0.0, 4.2]
    with mpl.rc_context(STYLE):
        figure = canvas(WIDTH, height, title=results["title"], subtitle=_subtitle(results))
        left, room = LEFT + label, WIDTH - LEFT - label - 0.3
        panels = []
        for part in share:
            width = room * part / sum(share)
            if part:
                panels.append(axes_at(figure, left=left, top=1.2, width=width - 0.3, height=ROW * len(names)))
            left += width
        _rewards(panels[0], results, methods)
        if wins:
            _wins(panels[1], methods)
        _lengths(panels[-1], results, methods)
        for index, axes in enumerate(panels):
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_yticks(range(len(names)), [literal(name) for name in names] if index == 0 else [])
        panels[0].tick_params(axis="y", labelsize=9.5, labelcolor=INK, pad=8)
        return png(figure)


def frontier_figure(results: Values) -> bytes:
    """What distance from the start buys: the truth and the proxy over √KL."""
    pictures = [
        (key, title)
        for key, title in (("truth", truth_label(results)), ("proxy", "proxy reward"))
        if _has(results, key)
    ]
    with mpl.rc_context(STYLE):
        title = f"Reward against the distance from {results['start_name']}"
        about = "large: all seeds, with 95 % intervals   small: one seed   thin line: checkpoints on the way"
        names = _legend_rows(results)
        extra = LEGEND_ROW * (len(names) - 1)
        figure = canvas(WIDTH, 4.75 + extra, title=title, subtitle=about)
        _legend(figure, names)
        width = (WIDTH - LEFT) / max(1, len(pictures))
        for index, (key, name) in enumerate(pictures):
            axes = axes_at(figure, left=LEFT + 0.35 + width * index, top=1.5 + extra, width=width - 0.75, height=2.65)
            _frontier(axes, results, key)
            frame(
                axes,
                title=name[:1].upper() + name[1:],
                y="mean per prompt",
                x=f"√KL to {results['start_name']}  (√nats)",
            )
            plain_numbers(axes)
        return png(figure)


def curves_figure(results: Values) -> bytes | None:
    """What the runs logged, metric by metric: the mean over seeds strong, single seeds faint; None without any."""
    drawn = titles(results["curves"])
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    width, cell = (WIDTH - LEFT) / columns, 2.35
    names = _legend_rows(results, start=False)
    top = 1.5 + LEGEND_ROW * (len(names) - 1)
    with mpl.rc_context(STYLE):
        about = "strong: mean over seeds   faint: single seeds   rewards are those that training saw"
        figure = canvas(WIDTH, top + cell * rows - 0.3, title="What the runs logged", subtitle=about)
        _legend(figure, names)
        for index, (metric, title, unit) in enumerate(drawn):
            left, above = LEFT + 0.35 + width * (index % columns), top + cell * (index // columns)
            axes = axes_at(figure, left=left, top=above, width=width - 0.65, height=cell - 0.95)
            for method in sorted(results["methods"], key=lambda method: method["colour"]):
                _curve(axes, results["curves"].get(method["method"], {}), metric, method["colour"])
            frame(axes, title=title, y=unit, x="step")
            plain_numbers(axes)
            axes.margins(x=0.02)
        return png(figure)


def _subtitle(results: Values) -> str:
    return f"{results['prompts']} held-out prompts of {results['task']}   lines are 95 % intervals over prompts"


def _rewards(axes: Axes, results: Values, methods: Sequence[Values]) -> None:
    key = results["truth"] or "proxy"
    rows = [
        *((method["summary"], style(method["colour"])["color"]) for method in methods),
        (results["start"], START_COLOUR),
    ]
    if results["start"][key] is None:
        axes.text(0.5, 0.5, "no reward was measured", transform=axes.transAxes, color=QUIET, ha="center")
        frame(axes, title="Reward", grid="x")
        return
    axes.axvline(results["start"][key]["mean"], color=START_COLOUR, linewidth=0.9, linestyle=(0, (2, 3)))
    for place, (summary, colour) in enumerate(rows):
        mean, low, high = ends(summary[key])
        whisker(axes, x=(low, high), y=(place, place), colour=colour, width=3.2)
        axes.plot([mean], [place], "o", color=colour, markersize=7, zorder=3)
        beside(axes, mean_text(summary[key]), (high, place))
    name = truth_label(results) if results["truth"] else "proxy reward"
    frame(axes, title=name[:1].upper() + name[1:], y="mean per prompt", grid="x")
    plain_numbers(axes, y=False)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.1 * (high - low))  # room for the number behind the last interval


def _wins(axes: Axes, methods: Sequence[Values]) -> None:
    for place, method in enumerate(methods):
        wins, colour = method["summary"]["wins"], style(method["colour"])["color"]
        total = wins["wins"] + wins["ties"] + wins["losses"]
        won, tied = 100 * wins["wins"] / total, 100 * wins["ties"] / total
        for left, size, shade in (
            (0, won, colour),
            (won, tied, TIE_COLOUR),
            (won + tied, 100 - won - tied, LOSS_COLOUR),
        ):
            axes.barh(
                place, size, left=left, height=0.56, color=shade, alpha=0.5 if shade == colour else 1, linewidth=0
            )
        mean, low, high = ends(wins["rate"], scale=100)
        axes.plot([low, high], [place, place], color=INK, linewidth=1.5, zorder=3)
        axes.plot([mean], [place], "o", color=INK, markersize=5, zorder=3)
        beside(axes, percent(mean / 100), (100, place))
    frame(axes, title="Wins, by the judge", y="%: won, tied, lost; dot: ties half", grid="x")
    axes.axvline(50, color=QUIET, linewidth=0.9, linestyle=(0, (2, 3)), zorder=2.8)
    axes.set_xlim(0, 112)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def _lengths(axes: Axes, results: Values, methods: Sequence[Values]) -> None:
    rows = [
        *((method["summary"], style(method["colour"])["color"]) for method in methods),
        (results["start"], START_COLOUR),
    ]
    for place, (summary, colour) in enumerate(rows):
        mean, low, high = ends(summary["length"])
        axes.barh(place, mean, height=0.56, color=colour, alpha=0.28, linewidth=0)
        whisker(axes, x=(low, high), y=(place, place), colour=colour)
        beside(axes, number(mean), (high, place))
    frame(axes, title="Length", y="tokens", grid="x")
    axes.set_xlim(0, 1.22 * max(ends(summary["length"])[2] for summary, _ in rows))
    plain_numbers(axes, y=False, ticks=4)


def _has(results: Values, key: str) -> bool:
    return any(point[key] is not None for point in results["way"])


def distance(kl: float) -> float:
    """√KL; an estimate below zero is zero."""
    return math.sqrt(max(0.0, kl))


def _frontier(axes: Axes, results: Values, key: str) -> None:
    measured = results["truth"] if key == "truth" else key
    base, low, high = ends(results["start"][measured])
    axes.axhline(base, color=START_COLOUR, linewidth=0.9, linestyle=(0, (2, 3)))
    whisker(axes, x=(0, 0), y=(low, high), colour=START_COLOUR)
    axes.plot([0], [base], "D", color=START_COLOUR, markersize=6.5, zorder=3)
    for method in judged_methods(results):
        colour, shape = style(method["colour"])["color"], marker(method["colour"])
        own = [point for point in results["way"] if point["method"] == method["method"] and point[key] is not None]
        for seed in {point["seed"] for point in own}:
            way = sorted((distance(p["kl"]["mean"]), p[key]["mean"]) for p in own if p["seed"] == seed)
            axes.plot(*zip((0.0, base), *way, strict=True), color=colour, linewidth=0.8, alpha=0.45)
            axes.plot(*zip(*way, strict=True), shape, linestyle="", color=colour, markersize=3.4, alpha=0.55)
        mean, low, high = ends(method["summary"][measured])
        x, left, right = (distance(value) for value in ends(method["summary"]["kl"]))
        whisker(axes, x=(x, x), y=(low, high), colour=colour)
        whisker(axes, x=(left, right), y=(mean, mean), colour=colour)
        axes.plot([x], [mean], shape, color=colour, markersize=7, markeredgecolor="white", zorder=4)
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])


def _curve(axes: Axes, seeds: Values, metric: str, colour: int) -> None:
    own = [seed[metric] for seed in seeds.values() if metric in seed]
    if not own:
        return
    look = style(colour)
    if len(own) > 1:
        for curve in own:
            axes.plot(curve["steps"], _smoothed(curve["values"]), color=look["color"], linewidth=0.7, alpha=0.3)
    shared = sorted(set.intersection(*(set(curve["steps"]) for curve in own)))
    lookup = [dict(zip(curve["steps"], curve["values"], strict=True)) for curve in own]
    means = [math.fsum(run[step] for run in lookup) / len(lookup) for step in shared]
    axes.plot(shared, _smoothed(means), **look, linewidth=1.7)


def _smoothed(values: Sequence[float]) -> tuple[float, ...]:
    return smooth(values, smoothing_window(len(values)))


def _legend(figure: Figure, rows: Sequence[Sequence[Line2D]]) -> None:
    """Colours and names under the heading, in as many lines as they need."""
    width, height = figure.get_size_inches()
    look: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK, "borderpad": 0, "borderaxespad": 0}
    look |= {"handlelength": 1.3, "handletextpad": 0.5, "columnspacing": 1.4, "loc": "center left"}
    for index, row in enumerate(rows):
        place = ((LEFT - 0.02) / width, 1 - (0.92 + LEGEND_ROW * index) / height)
        figure.legend(handles=row, bbox_to_anchor=place, ncols=len(row), **look)


def _legend_rows(results: Values, *, start: bool = True) -> list[list[Line2D]]:
    """The start model and the methods, no line longer than the figure is wide."""
    name = literal(results["start_name"])
    first = Line2D([], [], color=START_COLOUR, marker="D", linestyle="", markersize=5.5, label=name)
    handles = [first] if start else []
    for method in sorted(judged_methods(results), key=lambda method: method["colour"]):
        look = {**style(method["colour"]), "marker": marker(method["colour"]), "markersize": 4.5}
        handles.append(Line2D([], [], **look, linewidth=2, label=literal(method["method"])))
    rows: list[list[Line2D]] = [[]]
    used = 0.0
    for handle in handles:
        size = 0.5 + 0.075 * len(str(handle.get_label()))  # inches
        if rows[-1] and used + size > WIDTH - 2 * LEFT:
            rows.append([])
            used = 0.0
        rows[-1].append(handle)
        used += size
    return rows
