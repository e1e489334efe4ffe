"""What a run needs where it will run, checked before it waits in a queue: secrets, files and models of its recipe."""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from whet.errors import UserError

if TYPE_CHECKING:
    from whet.launch.job import Job
    from whet.launch.tool import Tool
    from whet.recipe import Pipeline, Recipe

WANDB_KEY = "WANDB_API_KEY"
WANDB_HOST = "api.wandb.ai"  # of whose account `wandb login` keeps the key
CODE = re.compile(r"(.+\.py):\w+")  # file.py:name, of a reward function, a task, a cell or a loss
# Keys that name a model, and those that name rows, also of the stages of a pipeline.
MODEL = re.compile(r"(.*\.)?(model|reference)(\.path)?")
ROWS = re.compile(r"(.*\.)?(data|task|sets|path)(\.\w+)*")
Kind = Literal["model", "file"]


def require_secrets(recipe: Recipe | Pipeline, job: Job, tool: Tool) -> None:
    """Refuses a job whose recipe asks for secrets that it will not have."""
    given = {*job.secrets, *job.environment}
    if tool.passes_variables:
        given |= {name for name, value in os.environ.items() if value}
        given |= {WANDB_KEY} if _is_logged_in() else set()
    for name, why, instead in _needed(recipe):
        if not given & {name, instead}:
            way = f"export {name} first" if tool.passes_variables else f"add --secret {name}"
            other = f", or --env {instead}=offline" if instead else ""
            raise UserError(f"{why}, and the job has no {name}: {way}{other}")


def file_notes(recipe: Recipe | Pipeline, job: Job, tool: Tool) -> list[str]:
    """Refuses files and models that the run will not find; notes on those that cannot be seen from here."""
    named = list(_named(recipe))
    if tool.files == "elsewhere":
        names = ", ".join(dict.fromkeys(f"{text} ({key})" for key, text, _ in named))
        return [f"note: must be in the image or on the volume: {names}"] if names else []
    notes: list[str] = []
    for key, text, kind in named:
        problem = _model_problem(text) if kind == "model" else _file_problem(text)
        if tool.files == "copied":
            notes += _of_a_copy(key, text, kind, problem, job.setup)
        elif problem:
            raise UserError(f"{key}: {problem}")
    return notes


def _of_a_copy(key: str, text: str, kind: Kind, problem: str, setup: Sequence[str]) -> Iterator[str]:
    """The same for a machine that has a copy of this folder, after the commands of --setup."""
    from whet.models.download.model_hub import can_be_pulled

    place = Path(text).expanduser()
    if place.is_absolute():
        yield f"note: {key}: {text} must be there under the same path"
    elif kind == "model" and not place.exists() and can_be_pulled(text):
        if not any(f"models pull {text}" in command for command in setup):
            yield f"note: {key}: {text} must be pulled there, e.g. by --setup 'whet models pull {text}'"
    elif problem and not setup:
        raise UserError(f"{key}: {problem}")
    elif not place.resolve().is_relative_to(Path.cwd().resolve()):
        raise UserError(
            f"{key}: {text} is not below {Path.cwd()}, and this folder is what is copied to the other machine: start "
            "the command in a folder that has all files"
        )


def _needed(recipe: Recipe | Pipeline) -> Iterator[tuple[str, str, str]]:
    """A variable, why it is needed, and one that does without it; empty: there is none."""
    from whet.config import OfflineConfig, TrainConfig
    from whet.recipe import Pipeline

    configs = [one.config for one in recipe.runs().values()] if isinstance(recipe, Pipeline) else [recipe.config]
    for config in configs:
        if isinstance(config, TrainConfig) and "wandb" in config.track:
            yield WANDB_KEY, "track has wandb", "WANDB_MODE"
        if not isinstance(config, OfflineConfig):
            for name in config.reward.environment:
                yield name, f"reward.environment passes {name} to reward functions", ""


def _is_logged_in() -> bool:
    """Whether `wandb login` has left a key in the home folder."""
    try:
        return netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _named(recipe: Recipe | Pipeline) -> Iterator[tuple[str, str, Kind]]:
    """Key, text as written, and kind of what the recipe names; not what an earlier stage of a pipeline makes."""
    from whet.config.pipeline import REFERENCE, texts
    from whet.files.readers import is_file_name

    for key, text in texts(recipe.written):
        if REFERENCE.fullmatch(text):
            continue
        if code := CODE.fullmatch(text):
            yield key, code[1], "file"
        elif MODEL.fullmatch(key) and text:
            yield key, text, "model"
        elif ROWS.fullmatch(key) and is_file_name(text):
            yield key, text, "file"


def _file_problem(text: str) -> str:
    return "" if Path(text).expanduser().exists() else f"there is no file {text} here"


def _model_problem(text: str) -> str:
    from whet.models.download.model_hub import resolve_model

    try:
        resolve_model(text)
    except UserError as error:
        return str(error)
    return ""
