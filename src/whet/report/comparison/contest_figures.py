"""Figures of a pipeline's comparison: overview, reward against KL, over-optimisation of the proxy."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from whet.number_format import number, percent
from whet.report import figures as fig
from whet.report.comparison.comparison_curves import DOTTED, LEGEND_ROW, WIDTH, draw_legend, legend_rows
from whet.report.comparison.entries import COLOURS, START_COLOUR, Values, ends, mean_text, style
from whet.report.comparison.verdict import TRUTHS, measured_methods

ROW = 0.42  # height of a row of the overview
TIE_COLOUR, LOSS_COLOUR = "#d5dae0", "#eef0f3"
MARKERS = ("o", "s", "^")
PROXY_DASH = (0, (3, 2))


def contest_figures(results: Values) -> dict[str, bytes]:
    """Name → PNG bytes, of the figures that have data."""
    drawn = {
        "overview": overview_figure(results),
        "frontier": frontier_figure(results),
        "overoptimisation": overoptimisation_figure(results),
    }
    return {name: picture for name, picture in drawn.items() if picture is not None}


def overview_figure(results: Values) -> bytes:
    """Reward, wins and length, one row per method: best at the top, start model at the bottom."""
    methods = measured_methods(results)
    names = [*(method["method"] for method in methods), results["start_name"]]
    height = 1.85 + ROW * len(names)
    label = min(2.4, 0.35 + 0.075 * max(map(len, names)))
    wins = results["start"]["wins"] is not None
    share = [4.0, 4.0, 2.2] if wins else [6.0, 4.2]
    about = f"{results['prompts']} held-out prompts of {results['task']}   lines are 95 % intervals over prompts"
    with fig.sheet(WIDTH, height, title=results["title"], subtitle=about) as figure:
        left, room = fig.LEFT + label, WIDTH - fig.LEFT - label - 0.3
        panels = []
        for part in share:
            width = room * part / sum(share)
            panels.append(fig.axes_at(figure, left=left, top=1.3, width=width - 0.3, height=ROW * len(names)))
            left += width
        _rewards(panels[0], results, methods)
        if wins:
            _wins(panels[1], methods)
        _lengths(panels[-1], results, methods)
        for index, axes in enumerate(panels):
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_yticks(range(len(names)), [fig.literal(name) for name in names] if index == 0 else [])
        panels[0].tick_params(axis="y", labelsize=9.5, labelcolor=fig.INK, pad=8)
        return fig.png(figure)


def frontier_figure(results: Values) -> bytes:
    """True and proxy reward against √KL to the start model."""
    named = {"truth": truth_label(results), "proxy": "proxy reward"}
    shown = [key for key in named if any(point[key] is not None for point in results["checkpoints"])]
    start = results["start_name"]
    first = Line2D([], [], color=START_COLOUR, marker="D", linestyle="", markersize=5.5, label=fig.literal(start))
    keys = [first, *_method_keys(results)]
    extra = LEGEND_ROW * (len(legend_rows(keys)) - 1)
    about = "large: all seeds, with 95 % intervals   small: one seed   thin line: checkpoints on the way"
    with fig.sheet(WIDTH, 4.8 + extra, title=f"Reward against the distance from {start}", subtitle=about) as figure:
        draw_legend(figure, keys)
        width = (WIDTH - fig.LEFT) / max(1, len(shown))
        for index, key in enumerate(shown):
            axes = fig.axes_at(figure, left=fig.LEFT + width * index, top=1.55 + extra, width=width - 0.6, height=2.65)
            _frontier(axes, results, key)
            fig.frame(axes, title=named[key].capitalize(), unit="mean per prompt", x=f"√KL to {start}  (√nats)")
            fig.plain_numbers(axes)
        return fig.png(figure)


def overoptimisation_figure(results: Values) -> bytes | None:
    """Proxy and true reward against √KL, for best-of-n and the methods; None without a proxy or a true reward.

    After Gao et al. 2022: the proxy keeps rising after the true reward turns down. Both are gains over the start model
    in standard deviations of its scores, so that they share an axis.
    """
    if not all(unit and unit["deviation"] for unit in results["spread"].values()):
        return None
    truth, start = truth_label(results), results["start_name"]
    units = f"gain over {start}, in standard deviations of its scores"
    about = f"{units}   all seeds together   lines at points: 95 % intervals"
    parts: list[tuple[str, Callable[[Axes, Values], None]]] = [("Trained methods", _trained)]
    if results["best_of_n"]:
        parts.insert(0, (f"Best-of-n of {start}", _best_of))
    keys = _keys(results, truth)
    with fig.sheet(WIDTH, 4.9, title=f"What the proxy promises, and the {truth}", subtitle=about) as figure:
        margin = 0.72 + 0.077 * max(len(str(key.get_label())) for key in keys)  # inches for the legend at the right
        width = (WIDTH - fig.LEFT - margin) / len(parts)
        drawn = []
        for index, (name, draw) in enumerate(parts):
            axes = fig.axes_at(figure, left=fig.LEFT + width * index, top=1.3, width=width - 0.4, height=3.0)
            drawn.append(axes)
            axes.axhline(0, color=fig.AXIS, linewidth=0.9)
            draw(axes, results)
            fig.frame(axes, title=name, x=f"√KL to {start}  (√nats)")
        low, high = (pick(axes.get_ylim()[end] for axes in drawn) for end, pick in ((0, min), (1, max)))
        for axes in drawn:
            axes.set_ylim(low, high)
            fig.plain_numbers(axes)
        look = {**fig.LEGEND, "fontsize": 8.5, "labelcolor": fig.INK, "handlelength": 2.0, "labelspacing": 0.6}
        figure.legend(handles=keys, loc="upper right", bbox_to_anchor=(1 - 0.2 / WIDTH, 1 - 1.2 / 4.9), **look)
        return fig.png(figure)


def _rewards(axes: Axes, results: Values, methods: Sequence[Values]) -> None:
    key = results["truth"] or "proxy"
    rows = _rows(results, methods)
    if results["start"][key] is None:
        axes.text(0.5, 0.5, "no reward was measured", transform=axes.transAxes, color=fig.QUIET, ha="center")
        fig.frame(axes, title="Reward", grid="x")
        return
    axes.axvline(results["start"][key]["mean"], color=START_COLOUR, linewidth=0.9, linestyle=DOTTED)
    for place, (summary, colour) in enumerate(rows):
        mean, low, high = ends(summary[key])
        fig.whisker(axes, x=(low, high), y=(place, place), colour=colour, width=3.2)
        axes.plot([mean], [place], "o", color=colour, markersize=7, zorder=3)
        fig.beside(axes, mean_text(summary[key]), (high, place))
    name = truth_label(results) if results["truth"] else "proxy reward"
    fig.frame(axes, title=name.capitalize(), unit="mean per prompt", grid="x")
    fig.plain_numbers(axes, y=False)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.1 * (high - low))  # room for the last label


def _wins(axes: Axes, methods: Sequence[Values]) -> None:
    for place, method in enumerate(methods):
        wins, colour = method["summary"]["wins"], style(method["colour"])["color"]
        total = wins["wins"] + wins["ties"] + wins["losses"]
        won, tied = 100 * wins["wins"] / total, 100 * wins["ties"] / total
        sizes, shades = [won, tied, 100 - won - tied], [to_rgba(colour, 0.5), TIE_COLOUR, LOSS_COLOUR]
        axes.barh([place] * 3, sizes, left=[0, won, won + tied], height=0.56, color=shades, linewidth=0)
        mean, low, high = ends(wins["rate"], scale=100)
        axes.plot([low, high], [place, place], color=fig.INK, linewidth=1.5, zorder=3)
        axes.plot([mean], [place], "o", color=fig.INK, markersize=5, zorder=3)
        fig.beside(axes, percent(mean / 100), (100, place))
    fig.frame(axes, title="Wins, by the judge", unit="%: won, tied, lost; dot: ties half", grid="x")
    axes.axvline(50, color=fig.QUIET, linewidth=0.9, linestyle=DOTTED, zorder=2.8)
    axes.set_xlim(0, 112)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def _lengths(axes: Axes, results: Values, methods: Sequence[Values]) -> None:
    rows = _rows(results, methods)
    for place, (summary, colour) in enumerate(rows):
        mean, low, high = ends(summary["length"])
        axes.barh(place, mean, height=0.56, color=colour, alpha=0.28, linewidth=0)
        fig.whisker(axes, x=(low, high), y=(place, place), colour=colour)
        fig.beside(axes, number(mean), (high, place))
    fig.frame(axes, title="Length", unit="tokens", grid="x")
    axes.set_xlim(0, 1.22 * max(ends(summary["length"])[2] for summary, _ in rows))
    fig.plain_numbers(axes, y=False, ticks=4)


def truth_label(results: Values) -> str:
    """Name of the score that the proxy is compared with."""
    return TRUTHS.get(results["truth"], "reward")


def marker(colour: int) -> str:
    """Marker of a method; changes when colours repeat."""
    return MARKERS[colour // len(COLOURS) % len(MARKERS)]


def distance(kl: float) -> float:
    """√KL; negative estimates count as zero."""
    return math.sqrt(max(0.0, kl))


def _frontier(axes: Axes, results: Values, key: str) -> None:
    measured = results["truth"] if key == "truth" else key
    base, low, high = ends(results["start"][measured])
    axes.axhline(base, color=START_COLOUR, linewidth=0.9, linestyle=DOTTED)
    fig.whisker(axes, x=(0, 0), y=(low, high), colour=START_COLOUR)
    axes.plot([0], [base], "D", color=START_COLOUR, markersize=6.5, zorder=3)
    for method in measured_methods(results):
        colour, shape = style(method["colour"])["color"], marker(method["colour"])
        own = [
            point for point in results["checkpoints"] if point["method"] == method["method"] and point[key] is not None
        ]
        for seed in {point["seed"] for point in own}:
            way = sorted((distance(p["kl"]["mean"]), p[key]["mean"]) for p in own if p["seed"] == seed)
            axes.plot(*zip((0.0, base), *way, strict=True), color=colour, linewidth=0.8, alpha=0.45)
            axes.plot(*zip(*way, strict=True), shape, linestyle="", color=colour, markersize=3.4, alpha=0.55)
        mean, low, high = ends(method["summary"][measured])
        x, left, right = (distance(value) for value in ends(method["summary"]["kl"]))
        fig.whisker(axes, x=(x, x), y=(low, high), colour=colour)
        fig.whisker(axes, x=(left, right), y=(mean, mean), colour=colour)
        axes.plot([x], [mean], shape, color=colour, markersize=7, markeredgecolor="white", zorder=4)
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])


def _best_of(axes: Axes, results: Values) -> None:
    points = results["best_of_n"]
    x = [distance(point["kl"]) for point in points]
    # This curve uses all samples of the start model, more than methods are compared with: hence its own zero.
    gains = {
        key: [_gain(results, key, point[key], base=results["spread"][key]["mean"]) for point in points]
        for key in ("proxy", "truth")
    }
    for key, found in gains.items():
        _gain_line(axes, x, found, key=key, colour=fig.INK, shape="o")
    for place, point, *found in zip(x, points, *gains.values(), strict=True):
        at = (place, max(high for _, _, high in found))
        label: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{point['n']}", at, size=8, color=fig.QUIET, **label)
    axes.set_xlim(-0.06 * max(x[-1], 0.5), 1.06 * max(x[-1], 0.5))
    axes.margins(y=0.12)


def _trained(axes: Axes, results: Values) -> None:
    for method in measured_methods(results):
        colour, shape = style(method["colour"])["color"], marker(method["colour"])
        own = [point for point in results["pooled_checkpoints"] if point["method"] == method["method"]]
        own.sort(key=lambda point: point["kl"]["mean"])
        x = [distance(point["kl"]["mean"]) for point in own]
        for key in ("proxy", "truth"):
            found = [_gain(results, key, point[key]) for point in own]
            _gain_line(axes, x, found, key=key, colour=colour, shape=shape)
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])
    axes.margins(y=0.12)


def _gain_line(
    axes: Axes, x: Sequence[float], gains: Sequence[tuple[float, float, float]], *, key: str, colour: str, shape: str
) -> None:
    """Mean and interval at each x, joined from the start model at (0, 0)."""
    dash, face = (PROXY_DASH, "white") if key == "proxy" else ("solid", colour)
    means = [mean for mean, _, _ in gains]
    axes.plot([0.0, *x], [0.0, *means], color=colour, linewidth=1.5, linestyle=dash)
    axes.plot(x, means, shape, color=colour, markerfacecolor=face, markersize=5, zorder=3)
    for place, (_, low, high) in zip(x, gains, strict=True):
        fig.whisker(axes, x=(place, place), y=(low, high), colour=colour)


def _gain(results: Values, key: str, interval: Values, *, base: float | None = None) -> tuple[float, float, float]:
    """Gain over the start model (or `base`) with its interval, in standard deviations of the start model's scores."""
    measured, unit = results["truth"] if key == "truth" else key, results["spread"][key]["deviation"]
    zero = results["start"][measured]["mean"] if base is None else base
    mean, low, high = ends(interval)
    return (mean - zero) / unit, (low - zero) / unit, (high - zero) / unit


def _keys(results: Values, truth: str) -> list[Line2D]:
    kinds = [
        Line2D([], [], color=fig.QUIET, linestyle=PROXY_DASH, marker="o", markerfacecolor="w", label="proxy reward"),
        Line2D([], [], color=fig.QUIET, marker="o", label=truth),
    ]
    best = [Line2D([], [], color=fig.INK, linewidth=2.2, label="best-of-n")] if results["best_of_n"] else []
    return kinds + best + _method_keys(results, linestyle="solid")


def _method_keys(results: Values, **look: Any) -> list[Line2D]:
    """Legend entries of the methods, in the order of the recipe."""
    keys = []
    for method in sorted(measured_methods(results), key=lambda method: method["colour"]):
        own = {**style(method["colour"]), "marker": marker(method["colour"]), "markersize": 4.5, "linewidth": 2, **look}
        keys.append(Line2D([], [], **own, label=fig.literal(method["method"])))
    return keys


def _rows(results: Values, methods: Sequence[Values]) -> list[tuple[Values, str]]:
    """Numbers and colour of each row of the overview, start model last."""
    own = [(method["summary"], style(method["colour"])["color"]) for method in methods]
    return [*own, (results["start"], START_COLOUR)]
