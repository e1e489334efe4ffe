"""Pipelines behind `whet train` and `whet compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whet.cli.terminal import say
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe
    from whet.runs.experiment_directories import PipelineDirectory


def train_pipeline(pipeline: Pipeline, root: Path) -> Path:
    """Runs a pipeline in a new directory below `root`, which is returned."""
    from whet.runs.experiment_directories import PipelineDirectory

    _refuse_ranks()
    directory = PipelineDirectory.create(root, pipeline.name)
    _run(pipeline, directory, written=pipeline.runs())
    return directory.path


def resume_pipeline(path: Path, overrides: Sequence[str], *, accept_changes: bool = False) -> None:
    """Goes on with a pipeline; overrides may change what has not begun yet."""
    from whet.runs.experiment_directories import PipelineDirectory
    from whet.train.experiments.pipeline_runs import reopened

    _refuse_ranks()
    directory = PipelineDirectory.open(path)
    _run(reopened(directory, overrides), directory, written={}, accept_changes=accept_changes)


def compare_pipeline(pipeline: Pipeline, root: Path, out: Path | None, *, words: Sequence[str], as_json: bool) -> None:
    """Runs a pipeline with the methods and seeds of a comparison, and shows how they compare."""
    from whet.runs.experiment_directories import PipelineDirectory

    directory = PipelineDirectory.create(root, pipeline.name) if out is None else PipelineDirectory.at(out.expanduser())
    _run(pipeline, directory, [*words, "--out", str(directory.path)], written=pipeline.runs(), as_json=as_json)


def _refuse_ranks() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("a pipeline trains in one process: start it without torchrun, or train its stages one by one")


def _run(
    pipeline: Pipeline,
    directory: PipelineDirectory,
    go_on: Sequence[str] = (),
    *,
    written: Mapping[str, Recipe],
    accept_changes: bool = False,
    as_json: bool = False,
) -> None:
    """Runs what is missing and shows the comparison, if there is one.

    `written` are the recipes whose keys without effect are worth a note.
    """
    from whet.cli.progress import make_progress
    from whet.cli.watcher import Watcher, refuse_failures, show_comparison, stoppable
    from whet.runs.experiment_directories import ComparisonDirectory
    from whet.train.experiments.pipeline_runs import make_plan, run_pipeline

    with stoppable(directory, go_on or ["whet", "train", str(directory.path), "--resume"]):
        plan = make_plan(pipeline, directory, accept_changes=accept_changes)
        watcher = Watcher(f"pipeline: {directory.path}", list(plan.states.values()), written, inside=make_progress)
        outcome = run_pipeline(plan, watcher, accept_changes=accept_changes)
    if outcome.compared:
        show_comparison(ComparisonDirectory(directory.comparison_path), as_json=as_json)
    if not as_json or not outcome.compared:
        say(f"pipeline  {directory.path}")
    refuse_failures(outcome.failures, len(plan.methods))
