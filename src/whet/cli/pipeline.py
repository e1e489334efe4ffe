"""Pipelines behind `whet train` and `whet compare`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whet.cli.terminal import say, say_json, say_text
from whet.errors import RunFailed, UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe
    from whet.runs.pipeline import PipelineDirectory
    from whet.train.experiments.pipeline import Outcome, Plan


def train_pipeline(pipeline: Pipeline, root: Path) -> Path:
    """Runs a pipeline in a new directory below `root`, which is returned."""
    from whet.runs.pipeline import PipelineDirectory

    _refuse_ranks()
    directory = PipelineDirectory.create(root, pipeline.name)
    _train(pipeline, directory, written=pipeline.runs())
    return directory.path


def resume_pipeline(path: Path, overrides: Sequence[str], *, accept_changes: bool = False) -> None:
    """Goes on with a pipeline; overrides may change what has not begun yet."""
    from whet.runs.pipeline import PipelineDirectory
    from whet.train.experiments.pipeline import reopened

    _refuse_ranks()
    directory = PipelineDirectory.open(path)
    _train(reopened(directory, overrides), directory, written={}, accept_changes=accept_changes)


def compare_pipeline(pipeline: Pipeline, root: Path, out: Path | None, *, words: Sequence[str], as_json: bool) -> None:
    """Runs a pipeline with the methods and seeds of a comparison, and shows how they were judged."""
    from whet.runs.logs import json_bytes
    from whet.runs.pipeline import PipelineDirectory

    directory = PipelineDirectory.create(root, pipeline.name) if out is None else PipelineDirectory.at(out.expanduser())
    go_on = [*words, "--out", str(directory.path)]
    plan, outcome = _run(pipeline, directory, go_on=go_on, written=pipeline.runs())
    if as_json and outcome.judged is not None:
        say_json(json_bytes(outcome.judged, indent=2).decode())
    else:
        _show(directory, outcome)
    _fail(plan, outcome)


def _refuse_ranks() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("a pipeline trains in one process: start it without torchrun, or train its stages one by one")


def _train(
    pipeline: Pipeline, directory: PipelineDirectory, *, written: Mapping[str, Recipe], accept_changes: bool = False
) -> None:
    go_on = ["whet", "train", str(directory.path), "--resume"]
    plan, outcome = _run(pipeline, directory, go_on=go_on, written=written, accept_changes=accept_changes)
    _show(directory, outcome)
    _fail(plan, outcome)


def _run(
    pipeline: Pipeline,
    directory: PipelineDirectory,
    *,
    go_on: Sequence[str],
    written: Mapping[str, Recipe],
    accept_changes: bool = False,
) -> tuple[Plan, Outcome]:
    """Runs what is missing; `written` are the recipes whose keys without effect are worth a note."""
    from whet.cli.comparing import Watcher
    from whet.cli.progress import make_progress
    from whet.train.experiments.pipeline import make_plan, run_pipeline

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


def _show(directory: PipelineDirectory, outcome: Outcome) -> None:
    from whet.runs.judged import JudgedDirectory

    if outcome.judged is not None:
        judged = JudgedDirectory(directory.comparison_path)
        table, _, _ = judged.table_path.read_text("utf-8").partition("\n![")  # without the links to pictures
        say_text(f"{table.rstrip()}\n")
        say(f"page      {judged.page_path}")
        say(f"numbers   {judged.results_path}")
    say(f"pipeline  {directory.path}")


def _fail(plan: Plan, outcome: Outcome) -> None:
    if outcome.failures:
        (method, seed), why = next(iter(outcome.failures.items()))
        failed = f"{len(outcome.failures)} of {len(plan.methods)} runs of methods failed"
        raise RunFailed(f"{failed}, first {method} seed {seed}: {why}")
