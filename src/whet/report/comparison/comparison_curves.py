"""curves.png of a comparison: logged metrics of all runs, and what ranks them for each method by itself."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whet.evaluate.statistics import clipped, mean_interval
from whet.report import figures as fig
from whet.report.comparison.entries import METRICS, SHARE, ComparisonView, Entry, about_metric, style
from whet.runs.series import Series, smooth, smoothing_window

WIDTH = 11.6  # inches
CELL, ALONE = 2.35, 2.2  # height of a row of metrics, and of a row of single methods
COLUMNS, ALONE_COLUMNS = 3, 4
LEGEND_ROW = 0.23  # height of a row of the legend
OTHERS = "#d3d8de"  # other methods in the background of a single method's panel
DOTTED = (0, (2, 3))


def curves_figure(comparison: ComparisonView) -> bytes | None:
    """The figure as PNG bytes; None if nothing was logged.

    Each method of a sweep also gets a panel of its own with a band over seeds.
    """
    entries = sorted((entry for entry in comparison.entries if entry.curves), key=lambda entry: entry.colour or 0)
    metrics = _metrics(entries)
    if not metrics:
        return None
    keys = [line_key(entry) for entry in entries]
    top = 1.55 + LEGEND_ROW * (len(legend_rows(keys)) - 1)
    columns = min(COLUMNS, len(metrics))
    below = top + CELL * math.ceil(len(metrics) / columns)
    rank = comparison.ranked_by.metric if comparison.ranked_by else ""
    alone = [entry for entry in comparison.entries if rank in entry.curves]
    height = below - 0.2 + ALONE * math.ceil(len(alone) / ALONE_COLUMNS) + 0.2 * bool(alone)
    about = f"strong: mean over seeds   faint: single seeds   {comparison.subtitle}"
    with fig.sheet(WIDTH, height, title=comparison.title, subtitle=about) as figure:
        draw_legend(figure, keys)
        width = (WIDTH - fig.LEFT) / columns
        for index, (metric, (title, unit, scale)) in enumerate(metrics.items()):
            left, above = fig.LEFT + width * (index % columns), top + CELL * (index // columns)
            axes = fig.axes_at(figure, left=left, top=above, width=width - 0.6, height=CELL - 0.95)
            for entry in entries:
                _lines(axes, entry, metric, scale)
            _frame(axes, title, unit, comparison if metric == rank else None)
        width = (WIDTH - fig.LEFT) / ALONE_COLUMNS
        for index, entry in enumerate(alone):
            left, above = fig.LEFT + width * (index % ALONE_COLUMNS), below + 0.2 + ALONE * (index // ALONE_COLUMNS)
            axes = fig.axes_at(figure, left=left, top=above, width=width - 0.42, height=ALONE - 0.95)
            _alone(axes, entry, alone, rank)
            _frame(axes, entry.name, band(entry.curves[rank], about_metric(rank)[2])[0], comparison)
        return fig.png(figure)


def over_seeds(curves: Sequence[Series]) -> dict[int, list[float]]:
    """Step → the value of each seed, of the steps that all seeds have."""
    runs = [dict(zip(curve.steps, curve.values, strict=True)) for curve in curves]
    return {step: [run[step] for run in runs] for step in sorted(set.intersection(*map(set, runs)))}


def mean_over_seeds(curves: Sequence[Series], scale: float = 1.0) -> Series:
    values = over_seeds(curves)
    return Series(tuple(values), tuple(scale * math.fsum(found) / len(found) for found in values.values()))


def band(curves: Sequence[Series], scale: float) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Label and limits of the band around the mean: Student's t interval from three seeds on, range for two."""
    if len(curves) == 1:
        return "1 seed, no band", (), ()
    values = over_seeds(curves).values()
    if len(curves) == 2:
        pairs = [(min(found), max(found)) for found in values]
    else:
        intervals = [mean_interval(found) for found in values]
        shown = [clipped(interval) if scale == SHARE[1] else interval for interval in intervals]
        pairs = [(interval.low, interval.high) for interval in shown]
    words = f"band: {'95 % interval' if len(curves) > 2 else 'lowest to highest'}, {len(curves)} seeds"
    return words, tuple(scale * low for low, _ in pairs), tuple(scale * high for _, high in pairs)


def line_key(entry: Entry) -> Line2D:
    return Line2D([], [], **style(entry.colour or 0), linewidth=2, label=fig.literal(entry.name))


def legend_rows(keys: Sequence[Line2D]) -> list[list[Line2D]]:
    """Legend entries in rows that fit the width of the figure."""
    rows: list[list[Line2D]] = [[]]
    used = 0.0
    for key in keys:
        size = 0.5 + 0.075 * len(str(key.get_label()))  # inches
        if rows[-1] and used + size > WIDTH - 2 * fig.LEFT:
            rows.append([])
            used = 0.0
        rows[-1].append(key)
        used += size
    return rows


def draw_legend(figure: Figure, keys: Sequence[Line2D]) -> None:
    """Legend below the heading, in as many rows as needed."""
    width, height = figure.get_size_inches()
    look = {**fig.LEGEND, "fontsize": 9, "labelcolor": fig.INK, "handlelength": 1.3, "columnspacing": 1.4}
    for index, row in enumerate(legend_rows(keys)):
        place = ((fig.LEFT - 0.02) / width, 1 - (1.0 + LEGEND_ROW * index) / height)
        figure.legend(handles=row, bbox_to_anchor=place, ncols=len(row), loc="center left", **look)


def _metrics(entries: Sequence[Entry]) -> dict[str, tuple[str, str, float]]:
    """Metric → title, unit and factor, of all metrics that at least one run logged."""
    found = {metric for entry in entries for metric in entry.curves}
    known = [metric for metric in METRICS if metric in found]
    return {metric: about_metric(metric) for metric in (*known, *sorted(found - METRICS.keys()))}


def _lines(axes: Axes, entry: Entry, metric: str, scale: float) -> None:
    own, look = entry.curves.get(metric, ()), style(entry.colour or 0)
    if not own:
        return
    for curve in own if len(own) > 1 else ():
        values = [scale * value for value in curve.values]
        axes.plot(curve.steps, _smoothed(values), color=look["color"], linewidth=0.7, alpha=0.3)
    mean = mean_over_seeds(own, scale)
    # Markers would hide the dashes.
    marker = "o" if len(mean) <= fig.MARKED and look["linestyle"] == "solid" else ""
    axes.plot(mean.steps, _smoothed(mean.values), **look, linewidth=1.7, marker=marker, markersize=2.6)


def _alone(axes: Axes, entry: Entry, entries: Sequence[Entry], metric: str) -> None:
    scale = about_metric(metric)[2]
    for other in entries:
        if other is not entry:
            mean = mean_over_seeds(other.curves[metric], scale)
            axes.plot(mean.steps, mean.values, color=OTHERS, linewidth=0.9)
    own, look = mean_over_seeds(entry.curves[metric], scale), style(entry.colour or 0)
    _, low, high = band(entry.curves[metric], scale)
    if low:
        axes.fill_between(own.steps, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.plot(own.steps, own.values, **look, linewidth=1.7)


def _frame(axes: Axes, title: str, unit: str, ranked: ComparisonView | None) -> None:
    """`ranked` is the comparison whose ranking metric is drawn here."""
    fig.frame(axes, title=title, unit=unit, x="step")
    fig.plain_numbers(axes)
    fig.whole_steps(axes)
    if ranked is None or ranked.ranked_by is None:
        return
    scale = about_metric(ranked.ranked_by.metric)[2]
    if ranked.target is not None:
        axes.axhline(scale * ranked.target, color=fig.QUIET, linewidth=0.8, linestyle=DOTTED)
    if ranked.ranked_by.is_share:
        axes.set_ylim(-2, 102)


def _smoothed(values: Sequence[float]) -> tuple[float, ...]:
    return smooth(values, smoothing_window(len(values)))
