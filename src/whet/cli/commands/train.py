"""`whet train`."""

from __future__ import annotations

from pathlib import Path

import typer

from whet.errors import UserError


def train(
    source: str = typer.Argument(..., metavar="RECIPE|RUN", help="A packaged recipe, a YAML file, or a run to resume."),
    overrides: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Change keys of the recipe."),
    resume: bool = typer.Option(False, "--resume", help="Go on with a run that was stopped, bit for bit."),
    accept_changes: bool = typer.Option(
        False, "--accept-changes", help="With --resume: go on although files that the run was made from have changed."
    ),
    runs: Path = typer.Option(Path("runs"), "--runs", envvar="WHET_RUNS", help="Where run directories are made."),
) -> None:
    """Train a model. Examples:

    whet train grpo-sorting steps=200 lr=3e-4

    whet train runs/20260101-120000-grpo-sorting --resume

    torchrun --nproc-per-node 2 -m whet train grpo-sorting

    A pipeline of several runs goes the same way: its stages, then its methods.

    whet train pipeline.yaml stages.sft.steps=100 methods.grpo.lr=1e-4
    """
    from whet.cli.pipeline_console import resume_pipeline, train_pipeline
    from whet.cli.progress import make_progress
    from whet.recipe import Pipeline, read_any
    from whet.runs.pipeline_directory import is_pipeline
    from whet.train.start import resume_run, start_run

    if resume:
        path = Path(source)
        if is_pipeline(path):
            resume_pipeline(path, overrides or [], accept_changes=accept_changes)
        else:
            resume_run(path, overrides or [], make_progress, accept_changes=accept_changes)
        return
    if accept_changes:
        raise UserError("--accept-changes is for a run that goes on: add --resume, or leave it out")
    recipe = read_any(source, overrides or [])
    if isinstance(recipe, Pipeline):
        train_pipeline(recipe, runs)
    else:
        start_run(recipe, runs, make_progress)
