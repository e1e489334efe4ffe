"""All keys that some recipe may have, from the schema."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from whet.algorithms.cells import options
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.algorithms.table import OBJECTIVES
from whet.config.loops import LOOPS
from whet.config.pipeline import PipelineConfig
from whet.tasks.loading import ELSEWHERE, TASKS, find_task, task_options


def every_key() -> set[str]:
    """All dotted keys that some recipe may have."""
    found = {key for loop in LOOPS.values() for key in _keys(loop)} | {f"compare.{k}" for k in _compare()}
    found |= {f"objective.{key}" for row in (*PREFERENCES.values(), *REWARDS.values()) for key in options(row.loss)}
    maskings = [row.masking for row in OBJECTIVES.values() if row.masking is not None]
    found |= {f"objective.{key}" for masking in maskings for key in options(masking)}
    found |= {f"task.{key}" for task in map(find_task, (*TASKS, *ELSEWHERE)) for key in task_options(task)}
    return found | set(PipelineConfig.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, Annotated, tuple, dict):
        for inner in get_args(annotation):
            yield from _models(inner)


def _keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield above + name
        for inner in _models(field.annotation):
            yield from _keys(inner, f"{above}{name}.")


def _compare() -> Iterator[str]:
    annotation = PipelineConfig.model_fields["compare"].annotation
    return (key for model in _models(annotation) for key in _keys(model))
