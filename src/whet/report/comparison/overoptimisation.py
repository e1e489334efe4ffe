"""overoptimisation.png: what a proxy promises and what it is worth, over the distance from the start.

After Gao et al. 2022: the proxy keeps rising where the truth turns down. Both are drawn as gains over the start model
in standard deviations of its own scores, so that they share an axis whatever their units are.
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from whet.report.comparison.method_figures import WIDTH, distance
from whet.report.comparison.methods import Values, ends, judged_methods, marker, style, truth_label
from whet.report.drawing import LEFT, axes_at, canvas, frame, plain_numbers, whisker
from whet.report.run.curves import INK, QUIET, STYLE, literal, png

PROXY_DASH = (0, (3, 2))
LOOK: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8.5,
    "labelcolor": INK,
    "borderpad": 0,
    "handlelength": 2.0,
    "labelspacing": 0.6,
}


def overoptimisation_figure(results: Values) -> bytes | None:
    """Best-of-n beside the methods; None where there is no proxy, or nothing to hold it against."""
    if not all(unit and unit["deviation"] for unit in results["spread"].values()):
        return None
    truth = truth_label(results)
    with mpl.rc_context(STYLE):
        units = f"gain over {results['start_name']}, in standard deviations of its scores"
        about = f"{units}   all seeds together   lines at points: 95 % intervals"
        figure = canvas(WIDTH, 4.9, title=f"What the proxy promises, and the {truth}", subtitle=about)
        parts = [part for part in ("best_of_n", "path") if results[part]]
        keys = _keys(results, truth)
        margin = 0.72 + 0.077 * max(len(str(key.get_label())) for key in keys)  # inches for the names at the right
        width = (WIDTH - LEFT - margin) / len(parts)
        drawn = []
        for index, part in enumerate(parts):
            axes = axes_at(figure, left=LEFT + 0.35 + width * index, top=1.25, width=width - 0.6, height=3.05)
            drawn.append(axes)
            axes.axhline(0, color="#c3cad2", linewidth=0.9)
            (_best_of if part == "best_of_n" else _methods)(axes, results)
            name = f"Best-of-n of {results['start_name']}" if part == "best_of_n" else "Trained methods"
            frame(axes, title=name, x=f"√KL to {results['start_name']}  (√nats)")
        low, high = (pick(axes.get_ylim()[end] for axes in drawn) for end, pick in ((0, min), (1, max)))
        for axes in drawn:
            axes.set_ylim(low, high)
            plain_numbers(axes)
        figure.legend(handles=keys, loc="upper right", bbox_to_anchor=(1 - 0.2 / WIDTH, 1 - 1.2 / 4.9), **LOOK)
        return png(figure)


def _best_of(axes: Axes, results: Values) -> None:
    points = results["best_of_n"]
    x = [distance(point["kl"]) for point in points]
    # All samples of the start model are in this curve, more than methods are compared with: its zero is theirs.
    gains = {
        key: [_gain(results, key, point[key], base=results["spread"][key]["mean"]) for point in points]
        for key in ("proxy", "truth")
    }
    for key, found in gains.items():
        look = {"linestyle": PROXY_DASH, "markerfacecolor": "white"} if key == "proxy" else {"linestyle": "solid"}
        for place, (_, low, high) in zip(x, found, strict=True):
            whisker(axes, x=(place, place), y=(low, high), colour=INK)
        means = [mean for mean, _, _ in found]
        axes.plot(x, means, color=INK, marker="o", markersize=5, linewidth=1.6, zorder=3, **look)
    for place, point, *found in zip(x, points, *gains.values(), strict=True):
        at = (place, max(high for _, _, high in found))
        label: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{point['n']}", at, size=8, color=QUIET, **label)
    axes.set_xlim(-0.06 * max(x[-1], 0.5), 1.06 * max(x[-1], 0.5))
    axes.margins(y=0.12)


def _methods(axes: Axes, results: Values) -> None:
    for method in judged_methods(results):
        colour, shape = style(method["colour"])["color"], marker(method["colour"])
        own = [point for point in results["path"] if point["method"] == method["method"]]
        own.sort(key=lambda point: point["kl"]["mean"])
        x = [0.0, *(distance(point["kl"]["mean"]) for point in own)]
        for key in ("proxy", "truth"):
            found = [_gain(results, key, point[key]) for point in own]
            means = [0.0, *(mean for mean, _, _ in found)]
            dash, face = (PROXY_DASH, "white") if key == "proxy" else ("solid", colour)
            axes.plot(x, means, color=colour, linewidth=1.5, linestyle=dash)
            axes.plot(x[1:], means[1:], shape, color=colour, markerfacecolor=face, markersize=5, zorder=3)
            for place, (_, low, high) in zip(x[1:], found, strict=True):
                whisker(axes, x=(place, place), y=(low, high), colour=colour)
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])
    axes.margins(y=0.12)


def _gain(results: Values, key: str, interval: Values, *, base: float | None = None) -> tuple[float, float, float]:
    """Mean, low and high over the start model (or over `base`), in standard deviations of the start model's scores."""
    measured, unit = results["truth"] if key == "truth" else key, results["spread"][key]["deviation"]
    zero = results["start"][measured]["mean"] if base is None else base
    mean, low, high = ends(interval)
    return (mean - zero) / unit, (low - zero) / unit, (high - zero) / unit


def _keys(results: Values, truth: str) -> list[Line2D]:
    kinds = [
        Line2D([], [], color=QUIET, linestyle=PROXY_DASH, marker="o", markerfacecolor="white", label="proxy reward"),
        Line2D([], [], color=QUIET, marker="o", label=truth),
    ]
    methods = []
    for method in sorted(judged_methods(results), key=lambda method: method["colour"]):
        look = {"color": style(method["colour"])["color"], "marker": marker(method["colour"]), "markersize": 5}
        methods.append(Line2D([], [], **look, linewidth=2, label=literal(method["method"])))
    best = [Line2D([], [], color=INK, linewidth=2.2, label="best-of-n")] if results["best_of_n"] else []
    return kinds + best + methods
