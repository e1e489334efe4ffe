"""Progress display of one run."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from whet.cli.terminal import Screen, say
from whet.config.loops import CollectConfig, Config
from whet.evaluate.measures import Measure, headline, is_count, measure_of
from whet.runs.directory import RunDirectory
from whet.train.session.callbacks import Progress

SHOWN = {  # metric → (label, format)
    "reward/mean": ("reward", "{:.3f}"),
    "loss": ("loss", "{:.4f}"),
    "kl": ("kl", "{:.4f}"),
    "entropy": ("entropy", "{:.3f}"),
    "length/mean": ("length", "{:.1f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "seconds/step": ("s/step", "{:.2f}"),
    "seconds/waiting": ("s waiting", "{:.2f}"),  # of that, for rollouts of workers
}
SECONDS_BETWEEN_LINES = 2.0
RECENT = 20  # steps whose mean time is that of the steps to come


def make_progress(config: Config, _run: RunDirectory) -> Progress:
    """A live table in a terminal, plain lines elsewhere, nothing on other ranks."""
    if os.environ.get("RANK", "0") != "0":
        return SilentProgress()
    every = 0 if isinstance(config, CollectConfig) else config.eval.every_steps
    return (LiveProgress if sys.stderr.isatty() else LineProgress)(config.steps, every)


class SilentProgress:
    """Shows nothing: for ranks other than the first, and the base of other displays."""

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None: ...

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class LineProgress(SilentProgress):
    """A line every few seconds, and at every evaluation."""

    def __init__(self, steps: int, evaluate_every: int = 0) -> None:
        self.steps = steps
        self._eta = TimeLeft(steps, evaluate_every)
        self._last = 0.0

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        left = self._eta.after(step, timings.get("seconds/step", 0.0))
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES and not _held_out(metrics) and step != self.steps:
            return
        self._last = now
        shown = "  ".join(f"{label} {value}" for label, value in _values({**metrics, **timings}).items())
        self.note(f"step {step}/{self.steps}  {shown}  left {left}")

    def evaluating(self) -> AbstractContextManager[None]:
        return self._eta.evaluating()

    def note(self, text: str) -> None:
        say(text, err=True)


class LiveProgress:
    """A table of the newest numbers, redrawn in place; above it a line for every evaluation."""

    def __init__(self, steps: int, evaluate_every: int = 0) -> None:
        self.steps = steps
        self._eta = TimeLeft(steps, evaluate_every)
        self._console = Screen(file=sys.stderr)  # this one, also while prints of a user's code are redirected
        self._live = Live(console=self._console, refresh_per_second=8)
        self._live.start()
        self._newest: dict[str, str] = {}
        self._frame = Table.grid()

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Redraws; metrics that this step did not log keep their last value."""
        held_out = _held_out(metrics)
        if held_out:
            self.note(f"step {step}/{self.steps}  held-out {held_out}")
        self._newest |= _values({**metrics, **timings})
        table = Table.grid(padding=(0, 2))
        table.add_row("step", *self._newest, "left", style="dim")
        left = self._eta.after(step, timings.get("seconds/step", 0.0))
        table.add_row(f"{step}/{self.steps}", *self._newest.values(), left)
        self._frame = Table.grid()
        self._frame.add_row(table)
        self._frame.add_row(ProgressBar(total=self.steps, completed=step, width=60))
        self._live.update(self._frame)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Says so below the table, which stands still meanwhile."""
        frame = Table.grid()
        frame.add_row(self._frame)
        frame.add_row("evaluating …", style="dim")
        self._live.update(frame)
        with self._eta.evaluating():
            yield
        self._live.update(self._frame)

    def note(self, text: str) -> None:
        self._console.say(text)

    def close(self) -> None:
        self._live.stop()


class TimeLeft:
    """Estimate of the remaining time: that of the steps and that of the evaluations to come."""

    def __init__(self, steps: int, evaluate_every: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.evaluate_every = steps, evaluate_every
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds of steps, saving included
        self._evaluation = 0.0  # seconds of the newest evaluation
        self._began: float | None = None  # when the step that is under way began; evaluations move it on

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Times an evaluation, which is no part of a step."""
        started = self._clock()
        yield
        self._evaluation = self._clock() - started
        self._began = (started if self._began is None else self._began) + self._evaluation

    def after(self, step: int, seconds: float) -> str:
        """The time left after a step that took so many seconds, saving not included."""
        now = self._clock()
        self._recent.append(seconds if self._began is None else max(seconds, now - self._began))
        self._began = now
        mean = sum(self._recent) / len(self._recent)
        return str(timedelta(seconds=round((self.steps - step) * mean + self._evaluations(step) * self._evaluation)))

    def _evaluations(self, step: int) -> int:
        """How many are to come: every so many steps, and after the last one."""
        every = self.evaluate_every
        if not every or step >= self.steps:
            return 0
        return self.steps // every - step // every + (self.steps % every > 0)


def _held_out(metrics: Mapping[str, float]) -> str:
    """The metrics of an evaluation with their intervals; empty if there was none."""
    names = [key for key in metrics if key.startswith("eval/") and not is_count(key)]
    bounds = {end for name in names for end in measure_of(name).interval}
    shown = [measure_of(name) for name in names if name not in bounds]
    shown.sort(key=lambda measure: measure.interval[0] not in metrics)  # those with an interval first
    return "  ".join(_with_interval(metrics, measure) for measure in shown)


def _with_interval(metrics: Mapping[str, float], measure: Measure) -> str:
    """`accuracy 45.0% (38.1% … 52.1%)`; the line says that all of them are held-out."""
    ends = measure.ends(metrics)
    interval = f" ({' … '.join(ends)})" if ends else ""
    return f"{measure.label.removeprefix('held-out ')} {measure.text(metrics[measure.metric])}{interval}"


def _values(numbers: Mapping[str, float]) -> dict[str, str]:
    # On-policy the surrogate loss is 0 by construction: hidden where rewards are shown.
    hidden = {"loss"} if "reward/mean" in numbers else set()
    shown = {key: text for key, text in SHOWN.items() if key in numbers and key not in hidden}
    measure = headline(numbers)
    evaluated = {} if measure is None else {measure.label: measure.text(numbers[measure.metric])}
    return {label: form.format(numbers[key]) for key, (label, form) in shown.items()} | evaluated
