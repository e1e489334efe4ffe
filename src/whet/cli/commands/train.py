"""`whet train`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli import arguments, key_flags
from whet.cli.terminal import say, say_json
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe

# A file server keeps the lock of a machine that died for its lease, about a minute and a half.
WAIT_SECONDS = 120.0
ENDED_BY_ALARM = 3  # exit code
Resume = Annotated[bool, typer.Option("--resume", help="Continue a stopped run from its newest checkpoint, exactly.")]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="With --resume: continue although data, rewards or other inputs changed."),
]
Restartable = Annotated[
    bool,
    typer.Option(
        "--restartable", help="With --out: resume the run that was begun there, if any; leave a finished one."
    ),
]


def train(  # noqa: PLR0917 - typer's
    source: str = typer.Argument(..., metavar="RECIPE|RUN", help="A packaged recipe, a YAML file, or a run to resume."),
    overrides: arguments.Overrides = None,
    resume: Resume = False,
    accept_changes: AcceptChanges = False,
    restartable: Restartable = False,
    runs: arguments.Runs = Path("runs"),
    out: arguments.Out = None,
    name: arguments.Name = None,
    as_json: bool = typer.Option(False, "--json", help="Print the final results of the run, or of all runs, as JSON."),
    horizon: key_flags.Horizon = None,
    batch_size: key_flags.BatchSize = None,
    group_size: key_flags.GroupSize = None,
    seed: key_flags.Seed = None,
    reward_mode: key_flags.RewardMode = None,
    partial_logprob: key_flags.PartialLogprob = None,
    beta_kl: key_flags.BetaKl = None,
    kl_warmup_tokens: key_flags.KlWarmupTokens = None,
    reference: key_flags.Reference = None,
    stop_on: key_flags.StopOn = None,
) -> None:
    """Train from a recipe (SFT, DPO, GRPO, PPO …), or resume a run.

    A recipe may also train a reward model, or be a pipeline of several runs. A run makes a directory with its config,
    metrics, rollouts, checkpoints, best model and report. Its path is printed at the end; progress goes to standard
    error. A resumed run may be given more steps, and other intervals of evaluations and checkpoints.
    The doctor's warnings are printed when they first hold; a run that --stop-on ends exits with 3.

    \b
    Examples:
      whet train grpo-sorting steps=200 lr=3e-4
      whet train grpo model=DIR 'data={path: questions.jsonl, match: number}' rollout.group=16
      whet train dpo model=DIR data=pairs.jsonl epochs=1
      whet train @last --resume
      whet train @last --resume steps=400
      whet train grpo-sorting seed=1 --name second --json --stop-on critical
      whet train grpo-sorting --out runs/first --restartable
      whet train grpo-sorting --reward-mode plus --horizon 6 --group-size 4
      torchrun --nproc-per-node 2 -m whet train grpo-sorting
      whet train rlhf-reviews stages.sft.steps=100 methods.grpo.lr=1e-4
    """
    from whet.recipe import read_any

    values = (horizon, batch_size, group_size, seed, reward_mode, partial_logprob, beta_kl, kl_warmup_tokens)
    flags = dict(zip(key_flags.FLAGS, (*values, reference, stop_on), strict=True))
    if accept_changes and not resume:
        raise UserError("--accept-changes is for a resumed run: add --resume, or leave it out")
    _check_place(out, name, resume=resume, restartable=restartable)
    if restartable and out is not None and _was_begun(out.expanduser()):
        _continue(out.expanduser(), as_json=as_json)
        return
    if resume:
        key_flags.refuse_flags(flags)
        _resume(arguments.run_directory(source, runs), overrides or [], accept_changes=accept_changes, as_json=as_json)
        return
    words = key_flags.with_flags(source, arguments.with_runs(overrides, runs), flags)
    _say_followed(words[len(overrides or ()) :], flags)
    recipe = read_any(source, words, runs=runs)
    recipe = recipe if name is None else replace(recipe, name=name)
    _start(recipe, runs, None if out is None else out.expanduser(), as_json=as_json)


def _start(recipe: Recipe | Pipeline, runs: Path, out: Path | None, *, as_json: bool) -> None:
    """Starts what a recipe describes; torch is imported here, after the recipe is checked."""
    from whet.cli.experiments import train_pipeline
    from whet.cli.progress import make_progress
    from whet.recipe import Pipeline
    from whet.train.start import start_run

    if isinstance(recipe, Pipeline):
        train_pipeline(recipe, runs, out, as_json=as_json)
    else:
        _show(start_run(recipe, runs, make_progress, path=out), as_json=as_json)


def _resume(path: Path, overrides: list[str], *, accept_changes: bool, as_json: bool) -> None:
    from whet.cli.experiments import resume_pipeline
    from whet.cli.progress import make_progress
    from whet.runs.experiment_directories import is_pipeline
    from whet.train.start import resume_run

    if is_pipeline(path):
        resume_pipeline(path, overrides, accept_changes=accept_changes, as_json=as_json)
    else:
        _show(resume_run(path, overrides, make_progress, accept_changes=accept_changes), as_json=as_json)


def _was_begun(path: Path) -> bool:
    """Whether a run or a pipeline is in the directory.

    Every rank asks before it joins the others, and a run is created after all have joined: they all see the same.
    """
    from whet.runs.directory import RunDirectory
    from whet.runs.experiment_directories import is_pipeline

    return is_pipeline(path) or RunDirectory.find(path) is not None


def _continue(path: Path, *, as_json: bool) -> None:
    """Resumes what was begun with its own config; what is finished is only shown."""
    from whet.runs.catalogue import wait_for_writer
    from whet.runs.directory import RunDirectory
    from whet.runs.experiment_directories import is_pipeline
    from whet.train.start import is_complete

    if not is_pipeline(path) and is_complete(RunDirectory.open(path, is_writer=False)):
        _show(path, as_json=as_json)
        return
    if os.environ.get("RANK", "0") == "0":
        say(f"note: {path} was begun before, and goes on with its own config", err=True)
        wait_for_writer(path, WAIT_SECONDS)
    _resume(path, [], accept_changes=False, as_json=as_json)


def _check_place(out: Path | None, name: str | None, *, resume: bool, restartable: bool) -> None:
    if restartable and resume:
        raise UserError("--restartable resumes by itself, so --resume would have no effect: leave one out")
    if restartable and not out:
        raise UserError("--restartable needs the directory of the run: add --out DIR")
    if resume and (out or name):
        raise UserError(f"{'--out' if out else '--name'} is for a new run, and --resume continues one: leave it out")
    if out and name:
        raise UserError("--out is the whole directory of the run, so --name would have no effect: leave one out")


def _say_followed(added: Sequence[str], flags: Mapping[str, str | None]) -> None:
    """Says which keys flags set, where they set others than their own."""
    if len(added) > sum(value is not None for value in flags.values()) and os.environ.get("RANK", "0") == "0":
        say(f"note: flags set {' '.join(added)}", err=True)


def _show(path: Path, *, as_json: bool) -> None:
    """Prints where a finished run is; exits with a code of its own if an alarm of the doctor ended it."""
    from whet.doctor.findings import ended_by
    from whet.runs.directory import RunDirectory

    run = RunDirectory.open(path, is_writer=False)
    if os.environ.get("RANK", "0") == "0":
        if as_json:
            from whet.report.run.page import outcome

            say_json(outcome(run))
        else:
            say(str(path))
    if ended_by(str((run.results() or {}).get("ended", ""))) is not None:
        raise typer.Exit(ENDED_BY_ALARM)
