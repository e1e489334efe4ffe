"""Keyword arguments as keys of a recipe: functions and tasks by name, models by path, lists of rows by file."""

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
from whet.recipe import PIPELINE, apply_override, set_key, written_recipe
from whet.runs.layout import rows_path
from whet.tasks.grading.reward_functions import distinct
from whet.tasks.loading import TASKS
from whet.tasks.protocol import Task

StrPath = str | os.PathLike[str]
RecipeSource = StrPath | Mapping[str, Any]
Reward = str | Callable[..., Any] | tuple[str | Callable[..., Any], float]
Rows = list[Mapping[str, Any]]
OF_ROWS = (
    "chat",
    "columns",
    "match",
    "pattern",
    "held_out_share",
    "held_out_rows",
)  # options that are kept when a list of rows replaces the task
NAMED = (FunctionType, BuiltinFunctionType, MethodType, type)


class Objects:
    """Names for the objects of one call that cannot be imported: `<python>:NAME`, numbered if names repeat."""

    def __init__(self) -> None:
        self.by_name: dict[str, object] = {}

    def plain(self, value: Any) -> Any:
        """The value as plain data, as YAML would hold it."""
        if isinstance(value, Mapping):
            return {key: self.plain(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(one) for one in value]
        if isinstance(value, os.PathLike):  # a path, a run, a loaded model
            return os.fspath(value)
        if isinstance(value, Real) and not isinstance(value, bool):  # numpy's numbers too
            return int(value) if isinstance(value, Integral) else float(value)
        return value if isinstance(value, str | bool | None) else self._object(value)

    def _object(self, thing: Any) -> Any:
        """A task as its class and options, if these rebuild an equal one; any other object by name."""
        kind = type(thing)
        name = {task: name for name, task in TASKS.items()}.get(kind) or importable(kind)
        if name is not None and isinstance(thing, Task) and dataclasses.is_dataclass(kind):
            own = [field.name for field in dataclasses.fields(kind) if field.init and field.name != "name"]
            options = {field: getattr(thing, field) for field in own}
            again: Any = kind(**options) if _is_json(options) else None
            if again == thing:
                return {"name": name, **options}
        return self._spec(thing)

    def _spec(self, thing: Any) -> str:
        """`module:name` if it can be imported, else `<python>:name`."""
        found = importable(thing)
        if found is not None:
            return found
        if not callable(thing) and not isinstance(thing, Task):
            raise UserError(
                f"{thing!r:.80} is a {type(thing).__name__}, which a recipe cannot hold (a task needs name, draw, "
                "held_out, score and correct)"
            )
        inner = thing.func if isinstance(thing, partial) else thing
        own = inner.__name__ if isinstance(inner, NAMED) else type(inner).__name__
        known = [key for key, one in self.by_name.items() if one is thing]
        name = known[0] if known else distinct(own.strip("<>"), set(self.by_name))  # <lambda> → lambda
        self.by_name[name] = thing
        return f"{OBJECTS}:{name}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The arguments of one call: keys as plain data, and the objects and rows that they refer to."""

    keys: Sequence[tuple[str, Any]]  # dotted
    overrides: Sequence[str]  # as on the command line
    objects: Mapping[str, object]  # by name
    rows: Rows | None  # passed as `data`

    def words(self, *, of: str) -> list[str]:
        """The keys as KEY=VALUE words. Objects are refused: each of several runs must import its code by itself."""
        if self.objects:
            names = ", ".join(self.objects)
            raise UserError(f"{of} finds functions and tasks by file, not as objects: put {names} in a module")
        return [*(f"{key}={json.dumps(value)}" for key, value in self.keys), *self.overrides]

    def on(self, written: dict[str, Any], run: Path | None = None) -> dict[str, Any]:
        """The recipe with these keys on top; if there are rows, `run` is the directory that they are written to."""
        for key, value in self.keys:
            set_key(written, key, value, said=key)
        for override in self.overrides:
            apply_override(written, override)
        if run is not None:
            key = rows_key(written)
            before = written[key] if isinstance(written.get(key), Mapping) else {}
            if key == "task":  # online: the rows are the task
                before = {"name": "rows", **{option: before[option] for option in OF_ROWS if option in before}}
            written[key] = {**before, "path": str(rows_path(run.absolute(), key))}
        return written


def read_given(
    keys: Mapping[str, Any],
    rewards: Reward | Sequence[Reward] | None = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    data: Any = None,
) -> Given:
    """Splits the arguments of a call into plain keys, objects and rows."""
    objects, rows, words = Objects(), None, [] if isinstance(overrides, Mapping) else list(overrides)
    every = {**keys, **(overrides if isinstance(overrides, Mapping) else {})}
    if rewards is not None:
        rewards = [rewards] if callable(rewards) or isinstance(rewards, str) else rewards
        weighted = [one if isinstance(one, tuple) else (one, 1.0) for one in rewards]
        every["reward.functions"] = [{"use": use, "weight": weight} for use, weight in weighted]
    if isinstance(data, Mapping) and not isinstance(data.get("path", ""), str | os.PathLike):
        rows, every["data"] = plain_rows(data["path"]), {key: value for key, value in data.items() if key != "path"}
    elif isinstance(data, str | os.PathLike | Mapping):
        every["data"] = data
    elif data is not None:
        rows = plain_rows(data)
    plain = [change for key, value in every.items() for change in _changes(key, objects.plain(value))]
    return Given(keys=plain, overrides=words, objects=objects.by_name, rows=rows)


def read_source(source: RecipeSource, name: str | None) -> tuple[dict[str, Any], str, str]:
    """The keys of a recipe, its name, and how errors refer to it."""
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source)), name or "run", name or "the recipe"
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"a recipe is a packaged name, a YAML file or a dict, not a {type(source).__name__}")
    written, own = written_recipe(os.fspath(source))
    return written, name or own, os.fspath(source)


def rows_key(written: Mapping[str, Any]) -> str:
    """The section of a recipe that a list of rows replaces: `data` offline, `task` online."""
    loop = written.get("loop", "online")
    if loop == PIPELINE or os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("data as a list is for one run in one process: save it as a .jsonl file, and name that")
    return "data" if loop == "offline" else "task"


def _changes(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys. A section with its name (`preset`, `name`, `path`) replaces the recipe's; others are merged."""
    if not isinstance(value, Mapping) or WHOLE.get(key.rpartition(".")[2]) in value:
        yield key, value
        return
    for inner, one in value.items():
        yield from _changes(f"{key}.{inner}", one)


def plain_rows(data: Any, name: str = "data") -> Rows:
    """A list of dicts as JSON has them; `name` is the argument's, for errors."""
    try:
        rows = list(data)
    except TypeError:
        raise UserError(f"{name} is a {type(data).__name__}: give a path, or a list of dicts") from None
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            hint = " (of a DataFrame, give .to_dict('records'))" if isinstance(row, str) else ""
            raise UserError(f"{name}[{number}] is a {type(row).__name__}, not a dict{hint}")
        if not _is_json(row):
            raise UserError(f"{name}[{number}] holds something that JSON cannot: use text, numbers, lists and dicts")
    if not rows:
        raise UserError(f"{name} is an empty list: give at least one row")
    return rows


def _is_json(value: Mapping[str, Any]) -> bool:
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
