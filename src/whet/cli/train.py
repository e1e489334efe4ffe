"""`whet train`."""

from __future__ import annotations

from pathlib import Path

import typer


def train(
    source: str = typer.Argument(..., metavar="RECIPE|RUN", help="A packaged recipe, a YAML file, or a run to resume."),
    overrides: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Change keys of the recipe."),
    resume: bool = typer.Option(False, "--resume", help="Go on with a run that was stopped, bit for bit."),
    runs: Path = typer.Option(Path("runs"), "--runs", envvar="WHET_RUNS", help="Where run directories are made."),
) -> None:
    """Train a model. Examples:

    whet train grpo-sorting steps=200 lr=3e-4

    whet train runs/20260101-120000-grpo-sorting --resume

    torchrun --nproc-per-node 2 -m whet train grpo-sorting
    """
    from whet.cli.progress import make_progress
    from whet.recipe import read_recipe
    from whet.train.start import resume_run, start_run

    if resume:
        resume_run(Path(source), overrides or [], make_progress)
    else:
        start_run(read_recipe(source, overrides or []), runs, make_progress)
