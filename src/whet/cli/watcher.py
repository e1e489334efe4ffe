"""Console output of several runs in a row: two lines per run and, meanwhile, its current step."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from whet.cli.terminal import Screen, Waiting, say, say_json, say_text
from whet.errors import RunFailed, UserError
from whet.recipe import Config, Recipe
from whet.report.numbers import duration
from whet.runs.directory import Run
from whet.runs.experiment_directories import ComparisonDirectory, PipelineDirectory
from whet.runs.logs import json_bytes
from whet.train.experiments.jobs import State
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.session.session import Progress

DOING = {"new": "", "stopped": ", going on", "finished": ", done before"}
SHOWN = {"eval/accuracy": ("held-out accuracy", "{:.1%}"), "eval/loss": ("held-out loss", "{:.4f}")}  # the first found


class Watcher:
    """Tells which run of how many it is, what it came to, and how long the rest may take."""

    def __init__(
        self,
        title: str,
        states: Sequence[State],
        recipes: Mapping[str, Recipe],
        *,
        inside: Callable[[Config, Run], Progress] | None = None,
    ) -> None:
        """`recipes` by the names that notes on them begin with; `inside` shows the steps of a run."""
        self._console = Screen(stderr=True)
        self._inside = inside
        self._count = len(states)
        self._to_do = sum(state != "finished" for state in states)
        self._number = self._done = 0
        self._state: State = "new"
        self._started = time.monotonic()
        self.say(title)
        for name, recipe in recipes.items():
            for key, why in keys_without_effect(recipe).items():
                self.say(f"note: {name}: {key} has no effect here: {why}")

    def begin(self, label: str, state: State) -> None:
        """Says which run begins."""
        self._number += 1
        self._state = state
        elapsed = time.monotonic() - self._started
        # Until one run has ended nothing is known of the others.
        rest = round(elapsed / self._done * (self._to_do - self._done)) if self._done else None
        left = "" if rest is None else f", about {duration(rest)} left"
        self.say(f"{self._number}/{self._count}  {label}{DOING[state]}   elapsed {duration(round(elapsed))}{left}")

    def progress(self, config: Config, run: Run) -> Progress:
        """What a run itself has to say while it runs."""
        return _Passing(self._console, config.steps) if self._inside is None else _Steps(self._inside(config, run))

    def end(self, run: Run | None, failure: str) -> None:
        """Says what the run came to."""
        self._done += self._state != "finished"
        results = run.results() if run else None
        self.say(f"     {_came_to(results)}" if results is not None else f"     failed: {failure}")

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.say(text)


def show_comparison(directory: ComparisonDirectory, *, as_json: bool) -> None:
    """Prints comparison.json, or verdict and table and where everything is."""
    if as_json:
        say_json(json_bytes(directory.results(), indent=2).decode())
        return
    text, _, _ = directory.table_path.read_text("utf-8").partition("\n![")  # without the links to pictures
    say_text(f"{text.rstrip()}\n")
    say(f"page      {directory.page_path}")
    say(f"table     {directory.table_path}")
    say(f"numbers   {directory.results_path}")


@contextmanager
def stoppable(directory: ComparisonDirectory | PipelineDirectory, go_on: Sequence[str]) -> Iterator[None]:
    """Says how to go on with what Ctrl-C or a failure stopped; wrong input leaves no directory behind."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; go on with: {shlex.join(go_on)}", err=True)
        raise
    except RunFailed as error:
        raise RunFailed(f"{error}; go on with: {shlex.join(go_on)}") from error
    except UserError:
        directory.remove_if_unused()
        raise


def refuse_failures(failures: Mapping[tuple[str, int], str], count: int) -> None:
    """Fails where one of so many runs did, once everything that the others came to is shown."""
    if failures:
        (method, seed), why = next(iter(failures.items()))
        raise RunFailed(f"{len(failures)} of {count} runs of methods failed, first {method} seed {seed}: {why}")


class _Passing:
    """The newest step of a run, in a line that goes away; in a terminal only."""

    def __init__(self, console: Screen, steps: int) -> None:
        self._steps = steps
        self._status = Waiting("starting", console)
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


class _Steps:
    """The steps of a run without its notes, for the same reason."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Shows the step."""
        self._inner.step(step, metrics, timings)

    def note(self, text: str) -> None:
        """Says nothing."""

    def close(self) -> None:
        """Ends the display."""
        self._inner.close()


def _came_to(results: Mapping[str, Any]) -> str:
    """What was made, or measured before and after, and how long it took."""
    if "rows" in results:
        return f"{results['rows']:,} rows"
    before, after = results["before"], results["after"]
    measured = [
        f"{label} {form.format(before[key])} → {form.format(after[key])}, "
        for key, (label, form) in SHOWN.items()
        if key in before and key in after
    ]
    return "".join(measured[:1]) + f"{results['seconds']:.1f} s of training"
