"""`whet train`."""

import os
from pathlib import Path

import typer

from whet.cli import arguments
from whet.cli.terminal import say_json
from whet.errors import UserError


def train(
    source: str = typer.Argument(..., metavar="RECIPE|RUN", help="A packaged recipe, a YAML file, or a run to resume."),
    overrides: arguments.Overrides = None,
    resume: bool = typer.Option(False, "--resume", help="Continue a stopped run from its newest checkpoint, exactly."),
    accept_changes: bool = typer.Option(
        False, "--accept-changes", help="With --resume: continue although data, rewards or other inputs changed."
    ),
    runs: arguments.Runs = Path("runs"),
    as_json: bool = typer.Option(False, "--json", help="Print the final results as one JSON object (of one run)."),
) -> None:
    """Train from a recipe (SFT, DPO, GRPO, PPO …), or resume a run.

    A recipe may also train a reward model, or be a pipeline of several runs. A run makes a directory with its config,
    metrics, rollouts, checkpoints, best model and report. Progress goes to standard error.

    \b
    Examples:
      whet train grpo-sorting steps=200 lr=3e-4
      whet train my.yaml algorithm=dapo rollout.group=16 algorithm.kl.coefficient=0.01
      whet train my.yaml objective=dpo data=pairs.jsonl epochs=1
      whet train runs/20260101-120000-grpo-sorting --resume
      torchrun --nproc-per-node 2 -m whet train grpo-sorting
      whet train rlhf-reviews stages.sft.steps=100 methods.grpo.lr=1e-4
    """
    from whet.cli.experiments import resume_pipeline, train_pipeline
    from whet.cli.progress import make_progress
    from whet.recipe import Pipeline, read_any
    from whet.runs.experiment_directories import is_pipeline
    from whet.train.start import resume_run, start_run

    if accept_changes and not resume:
        raise UserError("--accept-changes is for a resumed run: add --resume, or leave it out")
    recipe = None if resume else read_any(source, overrides or [])
    if as_json and (isinstance(recipe, Pipeline) or (resume and is_pipeline(Path(source)))):
        raise UserError("--json is for one run: of a pipeline, whet compare --json prints the comparison")
    if isinstance(recipe, Pipeline):
        train_pipeline(recipe, runs)
    elif recipe is not None:
        _show(start_run(recipe, runs, make_progress), as_json=as_json)
    elif is_pipeline(Path(source)):
        resume_pipeline(Path(source), overrides or [], accept_changes=accept_changes)
    else:
        path = resume_run(Path(source), overrides or [], make_progress, accept_changes=accept_changes)
        _show(path, as_json=as_json)


def _show(path: Path, *, as_json: bool) -> None:
    from whet.runs.directory import RunDirectory

    if as_json and os.environ.get("RANK", "0") == "0":
        results = RunDirectory.open(path, is_writer=False).results()
        say_json({"run": str(path), **(results or {})})
