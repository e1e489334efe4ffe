"""reward_model.png: calibration, margins, and accuracy by length or stated margin of a reward model."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from whet.evaluate.calibration import Bin, Slice
from whet.evaluate.reward_reports import OutcomeReport, PairReport, ProcessReport, Report
from whet.evaluate.statistics import Interval
from whet.number_format import number
from whet.report import figures as fig

Draw = Callable[[Axes], None]

RIGHT, WRONG = fig.PALETTE[0], fig.PALETTE[1]
PANEL, HEIGHT = 3.9, 4.1  # inches
TAIL = 0.005  # share of margins at either end that the outermost bars collect
BARS = 40
SHARES: dict[type[Report], dict[str, str]] = {  # of a report: label → attribute
    OutcomeReport: {
        "picked at random": "chance",
        "best-scored is right": "top",
        "any is right": "ceiling",
        "right above wrong": "pairwise",
        "called rightly": "accuracy",
    },
    ProcessReport: {
        "steps called rightly": "accuracy",
        "fine steps called fine": "fine_recall",
        "bad steps called bad": "bad_recall",
        "first error found": "first_error",
        "no false alarm": "no_error",
        "F1 of first errors": "f1",
    },
}
ABOVE = 16  # points between axes and heading, with or without a legend


def reward_figures(report: Report, *, title: str, subtitle: str) -> bytes:
    panels = _panels(report)
    width = PANEL * len(panels) + 0.3
    with fig.sheet(width, HEIGHT, title=title, subtitle=subtitle) as figure:
        for index, draw in enumerate(panels):
            draw(fig.axes_at(figure, left=PANEL * index + 0.62, top=1.38, width=PANEL - 0.8, height=HEIGHT - 2.0))
        return fig.png(figure)


def _panels(report: Report) -> list[Draw]:
    """The panels of each kind of report, left to right."""
    if isinstance(report, PairReport):
        panels: list[Draw] = [
            lambda axes: _calibration(axes, report.bins, report.calibration_error, (0.5, "confidence of a decision")),
            lambda axes: _margins(axes, report.margins),
        ]
        if report.by_length:
            longer = "" if report.longer is None else f", longer is chosen {100 * report.longer.mean:.1f} %"
            label = "length of chosen − length of rejected, by quarter"
            panels.append(lambda axes: _slices(axes, report.by_length, report, ("length", longer, label)))
        if report.by_margin:
            words = ("stated margin", "", "margin that the data states, by quarter")
            panels.append(lambda axes: _slices(axes, report.by_margin, report, words))
        return panels
    labels = "a solution is right" if isinstance(report, OutcomeReport) else "a step is fine"
    return [
        lambda axes: _calibration(axes, report.bins, report.calibration_error, (0.0, f"probability that {labels}")),
        lambda axes: _shares(axes, report),
    ]


def _calibration(axes: Axes, bins: Sequence[Bin], error: float, scale: tuple[float, str]) -> None:
    """Predicted against observed probability; larger points stand for more decisions."""
    low, label = scale
    axes.plot([low, 1], [low, 1], color=fig.QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    total = sum(some.count for some in bins)
    for some in bins:
        ends = [some.observed.low, some.observed.high]
        axes.plot([some.predicted] * 2, ends, color=RIGHT, linewidth=1.4, alpha=0.45, zorder=2)
    stated, seen = [some.predicted for some in bins], [some.observed.mean for some in bins]
    axes.plot(stated, seen, color=RIGHT, linewidth=1.2, alpha=0.6, zorder=2)
    sizes = [14 + 130 * some.count / total for some in bins]
    axes.scatter(stated, seen, s=sizes, color=RIGHT, edgecolor="white", linewidth=0.8, zorder=3)
    lowest = min([low, *(some.observed.low for some in bins)])
    axes.set_xlim(low - 0.02 * (1 - low), 1 + 0.02 * (1 - low))
    axes.set_ylim(math.floor(lowest * 10) / 10 - 0.01, 1.02)
    fig.frame(axes, title="Calibration", unit=f"error {100 * error:.1f} points", x=label, above=ABOVE)
    fig.plain_numbers(axes, show=_shown)
    axes.set_xticks([low + (1 - low) * index / 5 for index in range(6)])


def _margins(axes: Axes, margins: Sequence[float]) -> None:
    """Histogram of margins, right and wrong decisions; outliers are in the outermost bars."""
    ranked = sorted(margins)
    cut = int(TAIL * len(ranked))
    low, high = min(ranked[cut], 0.0), max(ranked[len(ranked) - 1 - cut], 0.0)
    stride = (high - low or 1.0) / max(5, min(BARS, math.ceil(2 * math.sqrt(len(ranked)))))
    below, above = math.ceil(-low / stride - 1e-9), math.ceil(high / stride - 1e-9)
    edges = [stride * index for index in range(-max(1, below), max(1, above) + 1)]  # 0 is an edge
    kept = [min(max(margin, edges[0]), edges[-1]) for margin in ranked]
    for name, colour, some in (
        ("right", RIGHT, [margin for margin in kept if margin > 0]),
        ("wrong", WRONG, [margin for margin in kept if margin < 0]),
    ):
        label = f"{name} {100 * len(some) / len(kept):.1f} %"
        axes.hist(some, bins=edges, color=colour, edgecolor="white", linewidth=0.5, label=label)
    axes.axvline(0, color=fig.INK, linewidth=0.8)
    fig.legend_above(axes, 2)
    fig.frame(axes, title="Margins", unit="pairs", x="score of chosen − score of rejected", above=ABOVE)
    fig.plain_numbers(axes, y=False)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=fig.ROUND, integer=True))


def _slices(axes: Axes, slices: Sequence[Slice], report: PairReport, words: tuple[str, str, str]) -> None:
    """Accuracy by quartile, with intervals, and the overall accuracy."""
    title, more, label = words
    overall = report.accuracy.mean
    axes.axhline(overall, color=fig.QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.axhline(0.5, color=fig.AXIS, linewidth=1, zorder=1)
    for place, part in enumerate(slices):
        axes.bar(place, part.accuracy.mean, width=0.62, color=RIGHT, alpha=0.85, zorder=2)
        axes.plot([place] * 2, [part.accuracy.low, part.accuracy.high], color=fig.INK, linewidth=1.3, zorder=3)
        above: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "zorder": 4}
        clear = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"}  # above the line
        shown = f"{100 * part.accuracy.mean:.0f} %"
        axes.annotate(shown, (place, part.accuracy.high), size=8, color=fig.INK, bbox=clear, **above)
    axes.set_xlim(-0.6, len(slices) - 0.4)
    axes.set_ylim(0, 1.08)
    fig.frame(axes, title=f"Accuracy by {title}", unit=f"all {100 * overall:.1f} %{more}", x=label, above=ABOVE)
    axes.set_xticks(range(len(slices)), [_range(part) for part in slices])
    fig.plain_numbers(axes, x=False, show=_shown)


def _shares(axes: Axes, report: Report) -> None:
    """Shares as horizontal bars, with intervals where there are any."""
    shares = {name: getattr(report, attribute) for name, attribute in SHARES[type(report)].items()}
    known = {name: value for name, value in shares.items() if value is not None}
    for place, value in enumerate(known.values()):
        is_interval = isinstance(value, Interval)
        mean, low, high = (value.mean, value.low, value.high) if is_interval else (value, value, value)
        axes.barh(place, mean, height=0.62, color=RIGHT if is_interval else "#b9c3cf", alpha=0.85, zorder=2)
        if is_interval:
            axes.plot([low, high], [place] * 2, color=fig.INK, linewidth=1.3, zorder=3)
        fig.beside(axes, f"{100 * mean:.1f} %", (high, place))
    axes.set_ylim(len(known) - 0.4, -0.6)
    axes.set_xlim(0, 1.22)
    fig.frame(axes, title="Held-out", unit="95 % intervals", x="", above=ABOVE)
    axes.grid(visible=False)
    axes.set_yticks(range(len(known)), list(known))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    box = axes.get_position()
    room = 0.36 * box.width  # for the names
    axes.set_position((box.x0 + room, box.y0, box.width - room, box.height))


def _shown(share: float) -> str:
    return f"{100 * share:.0f} %"


def _range(part: Slice) -> str:
    low, high = number(part.low), number(part.high)
    return low if low == high else f"{low} to {high}"
