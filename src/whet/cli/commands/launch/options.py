"""Options that several launchers share, and what all do with them: check the recipe, plan it, print or submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.terminal import say, say_file, say_json
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.launch.job import Job
    from whet.launch.tool import Tool
    from whet.recipe import Pipeline, Recipe

GIBI = 2**30

Nodes = Annotated[int, typer.Option("--nodes", min=1, max=4096, help="Machines that train together.")]
Gpus = Annotated[
    int, typer.Option("--gpus", min=0, max=64, help="GPUs of each machine, a process each; 0: one process on a CPU.")
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Kind of GPU, as in `whet plan`, e.g. h100.")]
Time = Annotated[str | None, typer.Option("--time", metavar="TIME", help="Time limit: 90m, 12h, 2d or 1-12:00:00.")]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of the job and its run directory.  [default: recipe and time]")
]
Restarts = Annotated[int, typer.Option("--restarts", min=0, max=1000, help="How often a failed run is resumed.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="An environment variable; may be repeated.")
]
Secret = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="A variable with a secret: its name is passed; may be repeated."),
]
StoredSecret = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=STORED]",
        help="A variable with a secret, and its name in the tool's store.  [default: NAME as wandb-api-key]",
    ),
]
Setup = Annotated[
    list[str] | None,
    typer.Option("--setup", metavar="COMMAND", help="A shell command before the run; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the file to standard output, and submit nothing.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the record of the launch as JSON; --dry-run: the file too.")
]


def named(name: str | None, source: str) -> str:
    from whet.launch.job import check_name, name_of

    return name_of(source, f"{datetime.now():%m%d-%H%M%S}") if name is None else check_name(name)


def kind_of(gpu: str | None) -> str | None:
    """The name of a GPU in the table of `whet plan`."""
    from whet.train.plan.gpus import GPUS, find_gpu

    if gpu is None:
        return None
    name = find_gpu(gpu).name
    if name not in GPUS:
        raise UserError(f"--gpu {gpu} is a size, and a tool needs a kind: choose one of {', '.join(GPUS)}")
    return name


def seconds_of(time: str | None) -> int | None:
    from whet.launch.job import read_seconds

    return None if time is None else read_seconds(time)


def is_packaged(source: str) -> bool:
    from whet.recipe import packaged_recipes

    return source in packaged_recipes()


def absolute(runs: str) -> str:
    """A folder on other machines, whose current directory is not this one."""
    if not runs.startswith("/"):
        raise UserError(f"--runs {runs}: give the whole path, e.g. /shared/runs, which is the same on all nodes")
    return runs


def require_whet(image: str | None, setup: Sequence[str] | None) -> None:
    """A new machine has no whet."""
    if image is None and not setup:
        raise UserError("a new machine has no whet: add --image with it, or --setup 'pip install …'")


def recipe_text(source: str) -> str:
    """A recipe of the user's own, as it is."""
    try:
        return Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # reading it as a recipe says what is wrong


def with_settings(**settings: str | int | None) -> dict[str, str]:
    """The settings that are given."""
    return {name: str(value) for name, value in settings.items() if value is not None}


def launch(job: Job, tool: Tool, source: str, *, dry_run: bool, as_json: bool) -> None:
    """Checks the recipe, says what the plan says, then prints or submits."""
    from whet.launch.submission import submit
    from whet.recipe import read_any

    _check_text(job)
    recipe = read_any(source, job.overrides)
    _check_shares(recipe, job)
    text = tool.render(job)
    for line in _verdict(recipe, job):
        say(line, err=True)
    if dry_run:
        if as_json:
            say_json({"name": job.name, "tool": tool.name, "run": job.run, "file": text})
        else:
            say_file(text)
        return
    started = submit(job, tool)
    if as_json:
        from dataclasses import asdict

        say_json(asdict(started))
        return
    say(f"{started.name}: {tool.name} {started.id}")
    say(f"run       {started.run}", err=True)
    say(f"its output: whet launch logs {started.name} --follow; to end it: whet launch stop {started.name}", err=True)


def _check_text(job: Job) -> None:
    for word in (*job.train, *job.environment.values(), *job.setup, *job.directives):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{word!r} is not UTF-8 text, and job files are: rename the file, or quote the value"
            ) from None
        if "\0" in word:
            raise UserError(f"{word!r} has a zero character, which no command line takes: remove it")


def _check_shares(recipe: Recipe | Pipeline, job: Job) -> None:
    """Refuses what would be refused when the job begins, perhaps after a day in a queue."""
    from whet.config import OfflineConfig
    from whet.config.loops import Acting
    from whet.recipe import Pipeline

    size = job.nodes * job.processes
    if isinstance(recipe, Pipeline):
        if size > 1:
            raise UserError(f"{recipe.name} is a pipeline, which trains in one process: leave --nodes and --gpus at 1")
        return
    config = recipe.config
    if isinstance(config, Acting):
        if size > 1:
            raise UserError(
                f"{recipe.name} has loop {config.loop}, which runs in one process: leave --nodes and --gpus at 1"
            )
        return
    share, key = (
        (config.batch_size, "batch_size")
        if isinstance(config, OfflineConfig)
        else (config.rollout.prompts, "rollout.prompts")
    )
    if share < size:
        raise UserError(f"{share} prompts or rows a step cannot be shared by {size} processes: raise {key}")


def _verdict(recipe: Recipe | Pipeline, job: Job) -> Sequence[str]:
    """What `whet plan` says of the recipe on this GPU, in a line or two; nothing without a GPU by name."""
    from whet.recipe import Pipeline
    from whet.train.plan.gpus import GPUS
    from whet.train.plan.recipe_plan import Asked, plan_pipeline, plan_recipe

    if job.gpu is None or not job.gpus:
        return []
    asked = Asked(gpu=GPUS[job.gpu], gpus=job.nodes * job.gpus)
    try:
        if isinstance(recipe, Pipeline):
            planned: Mapping[str, Any] = plan_pipeline(recipe, asked)
        else:
            planned = {recipe.name: plan_recipe(recipe, asked)}
    except UserError as error:
        return [f"note: not planned: {error}"]
    return [line for name, one in planned.items() for line in _lines(name, one)]


def _lines(name: str, one: Any) -> list[str]:
    if isinstance(one, str):
        return [f"plan: {name}: {one}"]
    plan = one.plan
    where = f"{plan.gpus} × {plan.gpu.name}" if plan.gpus > 1 else plan.gpu.name
    needs = f"needs {plan.peaks.needed / GIBI:.1f} of {plan.gpu.memory / GIBI:.1f} GiB"
    if plan.fits:
        hours, dollars = one.shown.hours, one.shown.dollars
        return [f"plan: {name} fits on {where}, {needs}; about {hours:.1f} h, ${dollars:,.2f}"]
    advice = f"; fits with {' '.join(one.advice[0].overrides)}" if one.advice else ""
    return [f"plan: {name} does not fit on {where}, {needs}{advice} (whet plan says more)"]
