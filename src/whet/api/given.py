"""What Python gives to a run, as a recipe can say it: functions and tasks by name, models by path, rows by file."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from whet.config.loops import WHOLE
from whet.errors import UserError
from whet.imports import OBJECTS, importable
from whet.recipe import Pipeline, Recipe, apply_override, set_key, validated, written_recipe
from whet.runs.layout import rows_path
from whet.tasks.grading.reward_functions import distinct
from whet.tasks.protocol import Task
from whet.tasks.table import TASKS

Reward = str | Callable[..., Any] | tuple[str | Callable[..., Any], float]
Rows = list[Mapping[str, Any]]
NAMED = (FunctionType, BuiltinFunctionType, MethodType, type)


class Objects:
    """The objects of one call that have no name in a file; each gets one, by its own and the order of the call."""

    def __init__(self) -> None:
        self.by_name: dict[str, object] = {}

    def plain(self, value: Any) -> Any:
        """The value as YAML could say it."""
        if isinstance(value, Mapping):
            return {key: self.plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, os.PathLike):  # a path, a run, a loaded model
            return os.fspath(value)
        if isinstance(value, Real) and not isinstance(value, bool):  # numpy's numbers too
            return int(value) if isinstance(value, Integral) else float(value)
        return value if isinstance(value, str | bool | None) else self._object(value)

    def reward(self, given: Reward) -> dict[str, Any]:
        """A reward function, alone or with its weight, as an entry of `reward.functions`."""
        use, weight = given if isinstance(given, tuple) else (given, 1.0)
        return {"use": self.plain(use), "weight": weight}

    def _object(self, thing: Any) -> Any:
        """A task by its class and options, where these make an equal one; all else by a name."""
        kind = type(thing)
        name = {task: name for name, task in TASKS.items()}.get(kind) or importable(kind)
        if name is not None and isinstance(thing, Task) and dataclasses.is_dataclass(kind):
            options = {field.name: vars(thing)[field.name] for field in dataclasses.fields(kind) if field.init}
            again: Any = kind(**options) if _is_json(options) else None
            if again == thing:
                return {"name": name, **options}
        return self._spec(thing)

    def _spec(self, thing: Any) -> str:
        """`module:name` where another process finds it, `<python>:name` elsewhere."""
        found = importable(thing)
        if found is not None:
            return found
        if not callable(thing) and not isinstance(thing, Task):
            raise UserError(f"{thing!r:.80} is a {type(thing).__name__}, and a recipe has no place for one")
        inner = thing.func if isinstance(thing, partial) else thing
        own = inner.__name__ if isinstance(inner, NAMED) else type(inner).__name__
        known = [key for key, one in self.by_name.items() if one is thing]
        name = known[0] if known else distinct(own.strip("<>"), set(self.by_name))  # of <lambda>, lambda
        self.by_name[name] = thing
        return f"{OBJECTS}:{name}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The keys of one call, as plain data, and what they cannot hold."""

    keys: Mapping[str, Any]
    overrides: Sequence[str]  # as on the command line
    objects: Mapping[str, object]  # by name
    rows: Rows | None  # of `data`

    def changes(self) -> list[tuple[str, Any]]:
        """Dotted key and value of everything."""
        return [change for key, value in self.keys.items() for change in _changes(key, value)]

    def words(self) -> list[str]:
        """All of it as on the command line."""
        return [*(f"{key}={json.dumps(value)}" for key, value in self.changes()), *self.overrides]


def read_given(
    keys: Mapping[str, Any], rewards: Sequence[Reward] | None, overrides: Mapping[str, Any] | Sequence[str], data: Any
) -> Given:
    """Takes a call apart."""
    objects = Objects()
    plain = {key: objects.plain(value) for key, value in keys.items()}
    if rewards is not None:
        plain["reward.functions"] = [objects.reward(one) for one in rewards]
    rows = None
    if data is not None and not isinstance(data, str | os.PathLike | Mapping):
        rows = _rows(data)
    elif data is not None:
        plain["data"] = objects.plain(data)
    words = [] if isinstance(overrides, Mapping) else list(overrides)
    plain |= {key: objects.plain(value) for key, value in overrides.items()} if isinstance(overrides, Mapping) else {}
    return Given(keys=plain, overrides=words, objects=objects.by_name, rows=rows)


def read_source(
    source: str | os.PathLike[str] | Mapping[str, Any], name: str | None
) -> tuple[dict[str, Any], str, str]:
    """What a recipe says, its name, and what to call it in errors."""
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), name or "run", name or "the recipe"
    written, own = written_recipe(os.fspath(source))
    return written, name or own, os.fspath(source)


def build_recipe(
    written: dict[str, Any], given: Given, run: Path | None, *, name: str, where: str
) -> Recipe | Pipeline:
    """The recipe with all that was given on top; rows will lie in the run."""
    for key, value in given.changes():
        set_key(written, key, value, said=key)
    for override in given.overrides:
        apply_override(written, override)
    if given.rows is not None and run is not None:
        key = rows_key(written)
        if key == "task":  # what learns from rollouts has its rows as a task
            before = written["task"] if isinstance(written.get("task"), Mapping) else {}
            kept = {option: before[option] for option in ("chat", "held_out_share") if option in before}
            written["task"] = {"name": "rows", **kept, "path": str(rows_path(run, key))}
        else:
            set_key(written, "data.path", str(rows_path(run, key)), said="data")
    return validated(written, name=name, where=where)


def rows_key(written: Mapping[str, Any]) -> str:
    """The section of a recipe that rows belong to."""
    loop = written.get("loop", "online")
    if loop == "pipeline":
        raise UserError("data as a list is for one run, and this is a pipeline: save it as a .jsonl file and name that")
    return "data" if loop == "offline" else "task"


def _changes(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys; a section that says its name replaces the recipe's, any other changes the keys that it has."""
    if not isinstance(value, Mapping) or WHOLE.get(key.rpartition(".")[2]) in value:
        yield key, value
        return
    for inner, one in value.items():
        yield from _changes(f"{key}.{inner}", one)


def _rows(data: Any) -> Rows:
    try:
        rows = list(data)
    except TypeError:
        raise UserError(f"data is a {type(data).__name__}: give a path, or a list of dicts") from None
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            hint = " (of a DataFrame, give .to_dict('records'))" if isinstance(row, str) else ""
            raise UserError(f"data[{number}] is a {type(row).__name__}, not a dict{hint}")
        if not _is_json(row):
            raise UserError(f"data[{number}] holds something that JSON cannot say: use text, numbers, lists and dicts")
    if not rows:
        raise UserError("data is an empty list: there is nothing to learn from")
    return rows


def _is_json(value: Mapping[str, Any]) -> bool:
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
