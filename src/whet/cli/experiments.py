"""Sweeps and pipelines on the console: `whet compare`, `whet train` of a pipeline, and their Python calls share it."""

import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from whet.cli.progress import SilentProgress, make_progress
from whet.cli.terminal import Screen, Waiting, say, say_json, say_text
from whet.errors import RunFailed, UserError
from whet.evaluate.measures import main_result, measure_of
from whet.number_format import duration
from whet.recipe import Config, Pipeline, Recipe
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.sweep_results import Ranking, sweep_results
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory, PipelineDirectory
from whet.train.experiments.disk_room import require_room
from whet.train.experiments.jobs import Method, PlannedRun, State, do_jobs
from whet.train.experiments.pipeline_runs import Plan, make_plan, reopened, run_pipeline
from whet.train.experiments.sweep import read_sweep
from whet.train.explain.explanation import disk_of
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.session.callbacks import Progress

Shown = Literal["text", "comparison", "runs"]  # the last two are JSON
STATES = {"new": "", "stopped": ", resumed", "finished": ", already finished"}


def compare_methods(
    source: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    changes: Sequence[tuple[str, str]] = (),
    *,
    target: float | None = None,
    root: Path,
    out: Path | None = None,
    as_json: bool = False,
) -> ComparisonDirectory:
    """Trains a recipe with every algorithm and seed, then writes and shows the table, curves and verdict.

    In a new directory below `root`, or exactly in `out`, where a comparison that was begun is continued. `changes` are
    overrides of one method: (method, KEY=VALUE). `target` is the value of the column "steps to".
    """
    refuse_ranks("a comparison")
    command = compare_command(source, methods, seeds, overrides, changes)
    command += [] if target is None else ["--target", f"{target:g}"]
    sweep = read_sweep(source, methods, seeds, overrides, changes, runs=root)
    if target is not None:
        _check_target(target, sweep.ranking)
    directory = ComparisonDirectory.create(root, sweep.recipe) if out is None else ComparisonDirectory.open(out)
    with _resumable(directory, [*command, "--out", str(directory.path)]):
        jobs = sweep.jobs(directory)
        states = [job.state for job in jobs.values()]
        first = {method: sweep.recipes[method, seeds[0]] for method in methods}
        progress = ConsoleProgress(f"comparison: {directory.path}", states, first)
        uses = {method: disk_of(recipe) for method, recipe in first.items()}
        new = [uses[method] for (method, _), job in jobs.items() if job.state == "new"]
        require_room(new, directory.path, progress.note)
        failures = do_jobs(jobs, progress)
    results = sweep_results(
        directory,
        failures,
        recipe=sweep.recipe,
        command=shlex.join(command if out is None else [*command, "--out", str(out)]),
        overrides=sweep.overrides,
        seeds=seeds,
        target=target,
        ranking=sweep.ranking,
    )
    directory.write_results(results)
    write_page(directory)
    _show_comparison(directory, as_json=as_json)
    _refuse_failures(failures, len(jobs))
    return directory


def _check_target(target: float, ranking: Ranking) -> None:
    if not math.isfinite(target) or (measure_of(ranking.metrics[0]).is_share and not 0 < target <= 1):
        raise UserError(
            f"--target {target:g} must be a share above 0 and at most 1, e.g. 0.8; where no share ranks the methods, "
            "name what does, e.g. best.metric=eval/reward"
        )


def read_seeds(text: str) -> list[int]:
    """`3` means seeds 0, 1, 2; `3,7` means 3 and 7; `7,` means 7 alone."""
    parts = [part.strip() for part in text.split(",")]
    listed = len(parts) > 1
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = [int(part) for part in parts if part]
    wrong = not numbers or min(numbers) < (0 if listed else 1) or len(set(numbers)) < len(numbers)
    if wrong:
        raise UserError(f"--seeds {text}: give how many seeds (3), or different seeds from 0 on (3,7)")
    return numbers if listed else list(range(numbers[0]))


def compare_command(
    source: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    changes: Sequence[tuple[str, str]],
) -> list[str]:
    """The `whet compare` command that makes this comparison, without --out."""
    numbers = f"{','.join(map(str, seeds))}," if len(seeds) == 1 else ",".join(map(str, seeds))
    counted = str(len(seeds)) if list(seeds) == list(range(len(seeds))) else numbers
    command = ["whet", "compare", "--methods", ",".join(methods), "--seeds", counted, source, *overrides]
    return [*command, *(word for method, override in changes for word in ("--set", f"{method}:{override}"))]


def train_pipeline(pipeline: Pipeline, root: Path, out: Path | None = None, *, as_json: bool = False) -> Path:
    """Runs a pipeline in a new directory below `root`, or exactly in `out`; returns the directory."""
    refuse_ranks("a pipeline")
    directory = PipelineDirectory.create(root, pipeline.name) if out is None else PipelineDirectory.at(out)
    show_pipeline(pipeline, directory, shown="runs" if as_json else "text")
    return directory.path


def resume_pipeline(
    path: Path, overrides: Sequence[str], *, accept_changes: bool = False, as_json: bool = False
) -> None:
    """Continues a pipeline; overrides may change runs that have not begun."""
    refuse_ranks("a pipeline")
    directory = PipelineDirectory.open(path)
    shown: Shown = "runs" if as_json else "text"
    show_pipeline(reopened(directory, overrides), directory, accept_changes=accept_changes, shown=shown)


def show_pipeline(
    pipeline: Pipeline,
    directory: PipelineDirectory,
    command: Sequence[str] = (),
    *,
    accept_changes: bool = False,
    shown: Shown = "text",
) -> None:
    """Makes the missing runs and shows the comparison, if there is one; `command` continues it after a stop.

    As JSON either the comparison alone, or the directory, the results of each run, and the comparison.
    """
    with _resumable(directory, command or ["whet", "train", str(directory.path), "--resume"]):
        plan = make_plan(pipeline, directory, accept_changes=accept_changes)
        states = [job.state for job in plan.jobs]
        progress = ConsoleProgress(f"pipeline: {directory.path}", states, pipeline.runs(), inside=make_progress)
        failures, compared = run_pipeline(plan, progress, accept_changes=accept_changes)
    comparison = ComparisonDirectory(directory.comparison_path) if compared else None
    if shown == "runs":
        say_json(_pipeline_results(plan, failures, comparison))
    elif comparison is not None:
        _show_comparison(comparison, as_json=shown == "comparison")
    if shown == "text":
        say(f"pipeline  {directory.path}")
    _refuse_failures(failures, len(plan.methods))


def _pipeline_results(
    plan: Plan, failures: Mapping[Method, str], comparison: ComparisonDirectory | None
) -> dict[str, Any]:
    def results(job: PlannedRun) -> dict[str, Any]:
        run = RunDirectory.find(job.path)
        return {"run": str(job.path), **((run.results() if run else None) or {})}

    return {
        "pipeline": str(plan.directory.path),
        "stages": [{"stage": name, **results(job)} for name, job in plan.stages.items()],
        "methods": [
            {"method": method, "seed": seed, "failure": failures.get((method, seed)), **results(job)}
            for (method, seed), job in plan.methods.items()
        ],
        "comparison": None if comparison is None else comparison.results(),
    }


def refuse_ranks(what: str) -> None:
    """Several runs are made by one process."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(f"{what} trains in one process: start it without torchrun, or train its runs one by one")


class ConsoleProgress:
    """Progress of several runs: which one of how many, its result, and the time left."""

    def __init__(
        self,
        title: str,
        states: Sequence[State],
        recipes: Mapping[str, Recipe],
        *,
        inside: Callable[[Config, RunDirectory], Progress] | None = None,
    ) -> None:
        """Notes keys without effect of `recipes`, by name; `inside` shows the steps of a run, else one line does."""
        self._console = Screen(stderr=True)
        self._inside = inside
        self._count = len(states)
        self._to_do = sum(state != "finished" for state in states)
        self._number = self._done = 0
        self._state: State = "new"
        self._started = time.monotonic()
        self.note(title)
        for name, recipe in recipes.items():
            for key, why in keys_without_effect(recipe).items():
                self.note(f"note: {name}: {key} has no effect here: {why}")

    def begin(self, label: str, state: State) -> None:
        self._number += 1
        self._state = state
        elapsed = time.monotonic() - self._started
        # No estimate before the first run has ended.
        rest = round(elapsed / self._done * (self._to_do - self._done)) if self._done else None
        left = "" if rest is None else f", about {duration(rest)} left"
        self.note(f"{self._number}/{self._count}  {label}{STATES[state]}   elapsed {duration(round(elapsed))}{left}")

    def progress(self, config: Config, run: RunDirectory) -> Progress:
        """Progress display of one run, without its notes: the comparison says itself where runs are."""
        if self._inside is None:
            return StepLine(self._console, config.steps)
        return StepsOnly(self._inside(config, run))

    def end(self, run: RunDirectory | None, failure: str) -> None:
        self._done += self._state != "finished"
        results = run.results() if run else None
        if results is None:
            outcome = f"failed: {failure}"
        elif "rows" in results:
            outcome = f"{results['rows']:,} rows"
        else:
            outcome = ", ".join(filter(None, (main_result((), results), f"{results['seconds']:.1f} s of training")))
        self.note(f"     {outcome}")

    def note(self, text: str) -> None:
        self._console.say(text)


class StepsOnly(SilentProgress):
    """The progress display of a run without its notes."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self._inner.step(step, metrics, timings)

    def evaluating(self) -> AbstractContextManager[None]:
        return self._inner.evaluating()

    def close(self) -> None:
        self._inner.close()


class StepLine(SilentProgress):
    """The newest step of a run in one line of a terminal, removed at the end."""

    def __init__(self, console: Screen, steps: int) -> None:
        self._steps = steps
        self._status = Waiting("starting", console)
        if console.is_terminal:
            self._status.start()

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        reward = f"  reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else ""
        self._status.update(f"step {step}/{self._steps}{reward}  {timings['seconds/step']:.2f} s")

    def close(self) -> None:
        self._status.stop()


def _show_comparison(directory: ComparisonDirectory, *, as_json: bool) -> None:
    """Prints comparison.json; or the verdict, the table and the paths of all files."""
    if as_json:
        say_json(directory.results())
        return
    text, _, _ = directory.table_path.read_text("utf-8").partition("\n![")  # without the links to pictures
    say_text(f"{text.rstrip()}\n")
    say(f"page      {directory.page_path}")
    say(f"table     {directory.table_path}")
    say(f"numbers   {directory.results_path}")


@contextmanager
def _resumable(directory: ComparisonDirectory | PipelineDirectory, command: Sequence[str]) -> Iterator[None]:
    """Says how to continue after Ctrl-C or a failure; removes the directory after wrong input."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; continue with: {shlex.join(command)}", err=True)
        raise
    except RunFailed as error:
        raise RunFailed(f"{error}; continue with: {shlex.join(command)}") from error
    except UserError:
        directory.remove_if_unused()
        raise


def _refuse_failures(failures: Mapping[Method, str], count: int) -> None:
    """Fails if a run failed, after the results of the others were shown."""
    if failures:
        (method, seed), why = next(iter(failures.items()))
        raise RunFailed(f"{len(failures)} of {count} runs of methods failed, first {method} seed {seed}: {why}")
