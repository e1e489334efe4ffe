"""How a comparison shows itself while it runs: two lines per run and, in a terminal, the step that it is at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from whet.recipe import Config
from whet.report.numbers import duration
from whet.runs.directory import Run
from whet.train.compare import Job, State
from whet.train.inert import keys_without_effect
from whet.train.session import Progress

DOING = {"new": "", "stopped": ", going on", "finished": ", done before"}


class Watcher:
    """Tells which run of how many it is, what it came to, and how long the rest may take."""

    def __init__(self, jobs: Sequence[Job], states: Sequence[State], path: Path) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._count = len(jobs)
        self._to_do = sum(state != "finished" for state in states)
        self._number = self._done = 0
        self._state: State = "new"
        self._started = time.monotonic()
        self.say(f"comparison: {path}")
        for method, notes in _notes(jobs).items():
            for note in notes:
                self.say(f"note: {method}: {note}")

    def begin(self, job: Job, state: State) -> None:
        """Says which run begins."""
        self._number += 1
        self._state = state
        elapsed = time.monotonic() - self._started
        # Until one run has ended nothing is known of the others.
        rest = round(elapsed / self._done * (self._to_do - self._done)) if self._done else None
        left = "" if rest is None else f", about {duration(rest)} left"
        what = f"{job.method} seed {job.seed}{DOING[state]}"
        self.say(f"{self._number}/{self._count}  {what}   elapsed {duration(round(elapsed))}{left}")

    def progress(self, config: Config, _run: Run) -> Progress:
        """What a run itself has to say, in a line that goes away."""
        return _Passing(self._console, config.steps)

    def end(self, _job: Job, run: Run | None, failure: str) -> None:
        """Says what the run came to."""
        self._done += self._state != "finished"
        results = run.results() if run else None
        if results is not None:
            before, after = (results[end].get("eval/accuracy") for end in ("before", "after"))
            self.say(f"     held-out accuracy {before:.1%} → {after:.1%}, {results['seconds']:.1f} s of training")
        else:
            self.say(f"     failed: {failure}")

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, markup=False)


class _Passing:
    """The newest step of a run; in a terminal only."""

    def __init__(self, console: Console, steps: int) -> None:
        self._steps = steps
        self._status = Status("starting", console=console)
        if console.is_terminal:
            self._status.start()

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Shows the step and its reward."""
        reward = f"  reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else ""
        self._status.update(f"step {step}/{self._steps}{reward}  {timings['seconds/step']:.2f} s")

    def note(self, text: str) -> None:
        """Says nothing: where a run is and how to resume it is the comparison's to say."""

    def close(self) -> None:
        """Takes the line away."""
        self._status.stop()


def _notes(jobs: Sequence[Job]) -> dict[str, list[str]]:
    """Method → the keys that the user wrote and that change nothing for it."""
    first = {job.method: job for job in reversed(jobs)}
    found = {method: keys_without_effect(first[method].recipe) for method in dict.fromkeys(job.method for job in jobs)}
    return {method: [f"{key} has no effect here: {why}" for key, why in idle.items()] for method, idle in found.items()}
