"""The panels of a run (metrics that share a plot), which the page draws too, and training_curves.png."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from whet.evaluate.measures import measures_in
from whet.number_format import number
from whet.report import figures as fig
from whet.runs.series import Rows, Series, series, smooth, smoothing_window, thin

COLUMNS = 3
BUCKETS = 400  # of the faint raw curve: about one per two pixels


def training_curves(panels: Sequence[Panel], *, title: str, subtitle: str) -> bytes:
    columns = max(1, min(COLUMNS, len(panels)))
    with fig.grid(len(panels), columns, height=2.55, title=title, subtitle=subtitle) as (figure, every_axes):
        if not panels:
            figure.text(0.5, 0.4, "no metrics yet", size=11, color=fig.QUIET, ha="center", va="center")
        # All headings at one height, above the legend if any panel has one.
        above = 20 if any(len(panel.lines) > 1 for panel in panels) else 8
        for panel, axes in zip(panels, every_axes, strict=True):
            _draw(axes, panel, above)
        return fig.png(figure)


def _draw(axes: Axes, panel: Panel, above: float) -> None:
    for line in panel.lines:
        _draw_line(axes, line)
    if len(panel.lines) > 1:
        fig.legend_above(axes, len(panel.lines))
    fig.frame(axes, title=panel.title, unit=panel.unit, x="step", above=above)
    fig.whole_steps(axes)
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=fig.ROUND))
        _limits(axes, panel)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _draw_line(axes: Axes, line: Line) -> None:
    colour = fig.PALETTE[line.colour % len(fig.PALETTE)]
    steps, values = line.curve.steps, line.curve.values
    if line.low is not None and line.high is not None:
        axes.fill_between(steps, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if line.faint is not None:
        raw = thin(line.faint, BUCKETS)
        axes.plot(raw.steps, raw.values, color=colour, alpha=0.22, linewidth=0.8)
    marker = "o" if len(steps) <= fig.MARKED else ""
    axes.plot(steps, values, color=colour, linewidth=1.7, marker=marker, markersize=3.2, label=fig.literal(line.label))


def _limits(axes: Axes, panel: Panel) -> None:
    low, high = axes.get_ylim()
    low = low if panel.floor is None else panel.floor
    high = high if panel.ceiling is None else panel.ceiling
    room = 0.02 * (high - low)  # a line at the edge is drawn in full
    axes.set_ylim(low - room, high + room if high > low else low + 1)


# (metric, label) of shares of a batch.
SHARES = (("truncated", "truncated"), ("groups/zero_variance", "zero-variance groups"), ("clip_fraction", "clipped"))
# Of held-out rows and text; a bidirectional model has a bound in place of the loss.
LOSSES = (("eval/loss", "held-out loss"), ("eval/bound", "bound"), ("eval/masked_loss", "at masked tokens"))
TIMES = (
    *(("seconds/rollout", "rollout"), ("seconds/score", "score"), ("seconds/annotate", "annotate")),
    *(("seconds/update", "update"), ("seconds/step", "whole step")),
)
WAITS = (("seconds/waiting", "for rollouts"), ("seconds/hand_off", "handing over weights"))
STALENESS = (("staleness/max", "largest"), ("staleness/mean", "mean"))
ROUNDING = 1e-6  # smaller losses are fp32 rounding
MAX_LINES = 5  # in one panel


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One curve of a panel; `colour` is an index into the palette."""

    label: str
    curve: Series
    colour: int
    faint: Series | None = None  # the raw values behind a smoothed curve
    low: tuple[float, ...] | None = None  # the band around the curve
    high: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """A chart with one unit and one or more lines."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    floor: float | None = None  # fixed lower limit of the axis
    ceiling: float | None = None
    log: bool = False


def panels(metrics: Rows, timings: Rows) -> list[Panel]:
    """The panels with data, most important first."""
    nats, held_out = "nats per token", (("eval/length", "held-out"),)
    length = _smoothed(metrics, (("length/mean", "training"),)) + _plain(metrics, held_out, colour=1)
    reward = _smoothed(metrics, (("reward/mean", "training"),)) + _plain(
        metrics, (("eval/reward", "held-out"),), colour=1
    )
    candidates = [
        _accuracy(metrics),
        Panel(title="Held-out loss", unit=nats, lines=_plain(metrics, LOSSES)),
        Panel(title="Reward", unit="mean per rollout", lines=reward),
        _parts(metrics),
        _tasks(metrics),
        Panel(title="Curriculum", unit="level", lines=_plain(metrics, (("curriculum/level", "level"),)), floor=0),
        _loss(metrics),
        _single(metrics, "KL to the reference", nats, "kl", "KL"),
        _single(metrics, "Entropy", nats, "entropy", "entropy", floor=0),
        Panel(title="Length", unit="tokens per completion", lines=length, floor=0),
        Panel(title="Episode length", unit="steps", lines=_episode_length(metrics), floor=0),
        Panel(title="Shares", unit="%", lines=_smoothed(metrics, SHARES, scale=100), floor=0),
        _single(metrics, "Gradient norm", "before clipping", "grad_norm", "norm", floor=0),
        Panel(title="Learning rate", unit="", lines=_plain(metrics, (("lr", "learning rate"),)), floor=0),
        _mismatch(metrics),
        Panel(title="Staleness", unit="steps", lines=_plain(metrics, STALENESS), floor=0),
        Panel(title="Time per step", unit="seconds", lines=_smoothed(timings, TIMES), floor=0),
        Panel(title="Waiting of the trainer", unit="seconds per step", lines=_smoothed(timings, WAITS), floor=0),
        _single(timings, "Speed", "tokens per second", "tokens_per_second", "speed", floor=0),
    ]
    return [panel for panel in candidates if panel.lines]


def _episode_length(metrics: Rows) -> tuple[Line, ...]:
    return _smoothed(metrics, (("episode_length", "training"),)) + _plain(
        metrics, (("eval/episode_length", "held-out"),), colour=1
    )


def _single(rows: Rows, title: str, unit: str, name: str, label: str, floor: float | None = None) -> Panel:
    return Panel(title=title, unit=unit, lines=_smoothed(rows, ((name, label),)), floor=floor)


def _plain(rows: Rows, names: tuple[tuple[str, str], ...], *, colour: int = 0) -> tuple[Line, ...]:
    curves = [(label, series(rows, name)) for name, label in names]
    drawn = [(label, curve) for label, curve in curves if len(curve)]
    return tuple(Line(label=label, curve=curve, colour=colour + i) for i, (label, curve) in enumerate(drawn))


def _smoothed(rows: Rows, names: tuple[tuple[str, str], ...], *, scale: float = 1) -> tuple[Line, ...]:
    lines = []
    for line in _plain(rows, names):
        raw = Series(line.curve.steps, tuple(value * scale for value in line.curve.values))
        window = smoothing_window(len(raw))
        mean = Series(raw.steps, smooth(raw.values, window))
        faint = raw if window > 1 else None
        lines.append(Line(label=line.label, curve=mean, colour=line.colour, faint=faint))
    return tuple(lines)


def _loss(metrics: Rows) -> Panel:
    """On-policy the surrogate is 0 by construction: a curve of rounding errors is omitted."""
    lines = _smoothed(metrics, (("loss", "loss"),))
    shown = any(abs(value) > ROUNDING for value in series(metrics, "loss").values)
    return Panel(title="Loss", unit="", lines=lines if shown else ())


def _accuracy(rows: Rows) -> Panel:
    """Everything that is a share, under the name of the most important one."""
    shares = {one.metric: one for row in rows for one in measures_in(row) if one.is_share}
    label = next((one.label for one in shares.values()), "held-out pass@k")
    names = [(name, name.removeprefix("eval/").replace("_", " ")) for name in (*shares, *pass_at_metrics(rows))]
    lines = [_banded(rows, name, label, colour) for colour, (name, label) in enumerate(names[:MAX_LINES])]
    kept = tuple(line for line in lines if len(line.curve))
    return Panel(title=label[0].upper() + label[1:], unit="%, 95 % interval", lines=kept, floor=0, ceiling=100)


def pass_at_metrics(rows: Rows) -> list[str]:
    """The metrics eval/pass@k of these rows, by k; not their intervals."""
    found = {name for row in rows for name in row if name.startswith("eval/pass@") and name[10:].isdigit()}
    return sorted(found, key=lambda name: int(name[10:]))


def _banded(rows: Rows, name: str, label: str, colour: int) -> Line:
    complete = [row for row in rows if all(row.get(name + end) is not None for end in ("", "_low", "_high"))]
    mean, low, high = (series(complete, name + end) for end in ("", "_low", "_high"))
    return Line(
        label=label,
        curve=Series(mean.steps, tuple(100 * value for value in mean.values)),
        colour=colour,
        low=tuple(100 * value for value in low.values),
        high=tuple(100 * value for value in high.values),
    )


def _parts(rows: Rows) -> Panel:
    names = sorted({name for row in rows for name in row if name.startswith("parts/")})
    # A single part is the reward itself, up to its weight.
    shown = [(name, name.removeprefix("parts/")) for name in names[:MAX_LINES]] if len(names) > 1 else []
    return Panel(title="Reward parts", unit="before weights", lines=_smoothed(rows, tuple(shown)))


def _tasks(rows: Rows) -> Panel:
    """The rewards of the tasks of a mixture: their scales may differ."""
    names = sorted({name for row in rows for name in row if name.startswith("tasks/") and name.endswith("/reward")})
    shown = [(name, name.removeprefix("tasks/").removesuffix("/reward")) for name in names[:MAX_LINES]]
    return Panel(title="Reward by task", unit="mean per rollout", lines=_smoothed(rows, tuple(shown)))


def _mismatch(rows: Rows) -> Panel:
    names = (("mismatch/max", "largest"), ("mismatch/mean", "mean"))
    # Zero has no logarithm, and exact agreement needs no figure.
    positive = [{name: value for name, value in row.items() if name == "step" or value} for row in rows]
    return Panel(title="Sampler against trainer", unit="nats", lines=_smoothed(positive, names), log=True)
