"""Pipelines behind `whet train` and `whet compare`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whet.cli.terminal import say
from whet.errors import RunFailed, UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe
    from whet.runs.pipeline_directory import PipelineDirectory
    from whet.train.experiments.pipeline_runs import Outcome, Plan


def train_pipeline(pipeline: Pipeline, root: Path) -> None:
    """Runs a pipeline in a new directory below `root`."""
    from whet.runs.pipeline_directory import PipelineDirectory

    _refuse_ranks()
    _train(pipeline, PipelineDirectory.create(root, pipeline.name), written=pipeline.runs())


def resume_pipeline(path: Path, overrides: Sequence[str], *, accept_changes: bool = False) -> None:
    """Goes on with a pipeline; overrides may change what has not begun yet."""
    from whet.runs.pipeline_directory import PipelineDirectory
    from whet.train.experiments.pipeline_runs import reopened

    _refuse_ranks()
    directory = PipelineDirectory.open(path)
    _train(reopened(directory, overrides), directory, written={}, accept_changes=accept_changes)


def compare_pipeline(pipeline: Pipeline, root: Path, out: Path | None, *, words: Sequence[str], as_json: bool) -> None:
    """Runs a pipeline with the methods and seeds of a comparison, and shows how they were judged."""
    from whet.runs.pipeline_directory import PipelineDirectory

    directory = PipelineDirectory.create(root, pipeline.name) if out is None else PipelineDirectory.at(out.expanduser())
    go_on = [*words, "--out", str(directory.path)]
    plan, outcome = _run(pipeline, directory, go_on=go_on, written=pipeline.runs())
    _end(plan, outcome, as_json=as_json)


def _refuse_ranks() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("a pipeline trains in one process: start it without torchrun, or train its stages one by one")


def _train(
    pipeline: Pipeline, directory: PipelineDirectory, *, written: Mapping[str, Recipe], accept_changes: bool = False
) -> None:
    go_on = ["whet", "train", str(directory.path), "--resume"]
    plan, outcome = _run(pipeline, directory, go_on=go_on, written=written, accept_changes=accept_changes)
    _end(plan, outcome)


def _run(
    pipeline: Pipeline,
    directory: PipelineDirectory,
    *,
    go_on: Sequence[str],
    written: Mapping[str, Recipe],
    accept_changes: bool = False,
) -> tuple[Plan, Outcome]:
    """Runs what is missing; `written` are the recipes whose keys without effect are worth a note."""
    from whet.cli.progress import make_progress
    from whet.cli.watcher import Watcher
    from whet.train.experiments.pipeline_runs import make_plan, run_pipeline

    command = shlex.join(go_on)
    try:
        plan = make_plan(pipeline, directory, accept_changes=accept_changes)
        watcher = Watcher(f"pipeline: {directory.path}", list(plan.states.values()), written, inside=make_progress)
        return plan, run_pipeline(plan, watcher, accept_changes=accept_changes)
    except KeyboardInterrupt:
        say(f"stopped; go on with: {command}", err=True)
        raise
    except RunFailed as error:
        raise RunFailed(f"{error}; go on with: {command}") from error
    except UserError:
        directory.remove_if_unused()
        raise


def _end(plan: Plan, outcome: Outcome, *, as_json: bool = False) -> None:
    """Shows the comparison, and fails where a method did."""
    from whet.cli.watcher import show_comparison
    from whet.runs.comparison_directory import ComparisonDirectory

    if outcome.compared:
        show_comparison(ComparisonDirectory(plan.directory.comparison_path), as_json=as_json)
    if not as_json or not outcome.compared:
        say(f"pipeline {plan.directory.path}")
    if outcome.failures:
        (method, seed), why = next(iter(outcome.failures.items()))
        failed = f"{len(outcome.failures)} of {len(plan.methods)} runs of methods failed"
        raise RunFailed(f"{failed}, first {method} seed {seed}: {why}")
