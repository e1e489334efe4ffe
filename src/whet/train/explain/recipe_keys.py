"""Every key of a recipe: type, default, meaning, and what uses it. From the config classes, tables and tasks.

The meaning of a key is the comment beside its field; that of an option of a cell or an objective is its formula.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from whet.algorithms.cells import Cell, options, plain, terms
from whet.algorithms.table import ALGORITHMS, CELLS
from whet.config.loops import LOOPS
from whet.config.objective import ROWS, optional_cell
from whet.config.pipeline import PipelineConfig
from whet.tasks.loading import ELSEWHERE, TASKS, find_task, task_options
from whet.train.explain.unused_keys import OFFLINE

PIPELINE = "pipeline"
UNBOUNDED = 1e9  # a larger bound is technical
NEEDED = "needed"  # in place of a default
OF_THE_PRESET = "that of the preset"
SET_BY_A_PRESET = {f"algorithm.{key}" for key in (*CELLS, "kl.coefficient", "kl.estimator", "kl.place")}
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
PLAIN: dict[Any, str] = {
    **{int: "whole number", float: "number", bool: "true or false", str: "text", dict: "section", NoneType: "null"},
    **{Mapping: "section", Any: "text | section"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of a recipe."""

    key: str  # dotted
    type: str
    default: str
    meaning: str
    used_by: str  # loops, and algorithms, objectives or tasks


def recipe_keys() -> list[Key]:
    """All keys in the order of the schema; one line for each default or meaning that differs between loops."""
    found: dict[Key, list[str]] = {}  # without `used_by` → the loops
    for loop, config in {**LOOPS, PIPELINE: PipelineConfig}.items():
        for key in _of_section(config, ""):
            if not (loop == "offline" and key.key in OFFLINE):
                found.setdefault(key, []).append(loop)
    every = [replace(key, used_by=_users(key.key, loops)) for key, loops in found.items()]
    grouped: dict[str, list[Key]] = {}
    for key in (*every, *_of_objectives(), *_of_tasks()):
        grouped.setdefault(key.key.partition(".")[0], []).append(key)
    return [key for keys in grouped.values() for key in keys]


def _of_section(section: type[BaseModel], above: str, default: Any = None) -> Iterator[Key]:
    """The keys of a section; `default` is the section that is used when the recipe has none."""
    meanings = field_comments(section)
    for field_name, field in section.model_fields.items():
        key = f"{above}{field_name}"
        if above == "algorithm." and field_name in _cells():
            yield from _of_cell(field_name)
            continue
        value = getattr(default, field_name) if default is not None else field.get_default(call_default_factory=True)
        inner = _section_in(field.annotation)
        if inner is not None and not _holds_several(field.annotation):
            yield from _of_section(inner, f"{key}.", value if isinstance(value, BaseModel) else None)
            continue
        spelled = NEEDED if field.is_required() and default is None else _spelled(value)
        spelled = OF_THE_PRESET if key in SET_BY_A_PRESET else spelled
        yield Key(key=key, type=_type(field), default=spelled, meaning=meanings.get(field_name, ""), used_by="")
        if inner is not None:
            yield from _of_section(inner, f"{key}[]." if get_origin(field.annotation) is tuple else f"{key}.")


def _of_cell(cell_name: str) -> Iterator[Key]:
    """The options of a packaged cell, which are keys under its name."""
    kind, cell = _cells()[cell_name]
    presets = {preset: options(row.cells[kind]) for preset, row in ALGORITHMS.items() if plain(row.cells[kind]) is cell}
    for option, value in options(cell).items():
        own = [f"{preset} {_spelled(given[option])}" for preset, given in presets.items() if given[option] != value]
        yield Key(
            key=f"algorithm.{cell_name}.{option}",
            type=PLAIN[type(value)],
            default="; ".join([_spelled(value), *own]),
            meaning=f"of {kind} {cell_name}: {_formula(cell)}",
            used_by="",
        )


def _of_objectives() -> Iterator[Key]:
    for objective, row in ROWS.items():
        for option, value in options(optional_cell(row)).items():
            yield Key(
                key=f"objective.{option}",
                type=PLAIN[type(value)],
                default=_spelled(value),
                meaning=f"of objective {objective}: {_formula(optional_cell(row))}",
                used_by=f"offline, objective {objective}",
            )


def _of_tasks() -> Iterator[Key]:
    found: dict[Key, list[str]] = {}
    for task in (*TASKS, *ELSEWHERE):
        kind = find_task(task)
        meanings, hints = field_comments(kind), get_type_hints(kind)
        for option, parameter in task_options(kind).items():
            needed = parameter.default is parameter.empty
            key = Key(
                key=f"task.{option}",
                type=_named(hints[option]),
                default=NEEDED if needed else _spelled(_default(kind, option, parameter.default)),
                meaning=meanings.get(option, ""),
                used_by="",
            )
            found.setdefault(key, []).append(task)
    for key, tasks in found.items():
        yield replace(key, used_by=f"task {', '.join(tasks)}")


def _default(kind: type, option: str, found: Any) -> Any:
    """The default of an option; of a dataclass also one that a factory makes."""
    factory = vars(kind).get("__dataclass_fields__", {}).get(option)
    is_made = factory is not None and factory.default_factory is not dataclasses.MISSING
    return factory.default_factory() if is_made else found


def _users(key: str, loops: Sequence[str]) -> str:
    """The loops of a key, with the algorithms where only some use it."""
    section, _, rest = key.partition(".")
    cell = _cells().get(rest.partition(".")[0]) if section == "algorithm" else None
    rows = ALGORITHMS.items()
    algorithms: list[str] = []
    if cell is not None:
        algorithms = [preset for preset, row in rows if plain(row.cells[cell[0]]) is cell[1]]
    elif section == "critic" or key == "offload.critic":
        algorithms = [preset for preset, row in rows if "values" in terms(row.cells["advantage"])]
    return ", ".join([*loops, *([f"algorithm {'/'.join(algorithms)}"] if algorithms else [])])


@cache
def _cells() -> Mapping[str, tuple[str, Cell]]:
    """Name → kind and function of every packaged cell with options."""
    return {key: (kind, cell) for kind, table in CELLS.items() for key, cell in table.items() if options(cell)}


def _formula(cell: Cell) -> str:
    return (inspect.getdoc(plain(cell)) or "").partition("\n")[0]


def field_comments(kind: type) -> dict[str, str]:
    """Field → the comment beside it, of a class and those it inherits from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if issubclass(one, BaseModel) or is_dataclass(one) or one.__module__.startswith("whet."):
            found |= _comments_in(one.__module__).get(one.__qualname__, {})
    return found


@cache
def _comments_in(module: str) -> dict[str, dict[str, str]]:
    """Class → field → comment, of all classes of a module of whet."""
    if not module.startswith("whet."):
        return {}
    source = inspect.getsource(sys.modules[module])
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_fields(node, comments)) for node in classes}


def _fields(node: ast.ClassDef, comments: Mapping[int, str]) -> Iterable[tuple[str, str]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            comment = comments.get(statement.end_lineno or statement.lineno, "")
            if comment:
                yield statement.target.id, comment


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, in a list, by name, or beside None; not one beside plain text."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [one for one in get_args(annotation) if one not in (NoneType, Ellipsis)]
    if get_origin(annotation) is dict and inner[0] is str:
        return _section_in(inner[1])
    if get_origin(annotation) in (tuple, Union, UnionType) and len(inner) == 1:
        return _section_in(inner[0])
    return None


def _holds_several(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, dict)


def _type(field: FieldInfo) -> str:
    bounds = _bounds(field.metadata)
    return f"{_named(field.annotation)}{bounds}"


def _bounds(metadata: Iterable[Any]) -> str:
    flat = [inner for one in metadata for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]
    found = [(sign, getattr(one, key)) for one in flat for key, sign in SIGNS.items() if hasattr(one, key)]
    told = [f"{sign} {bound:g}" for sign, bound in found if bound < UNBOUNDED]
    return f" {' and '.join(told)}" if told else ""


def _named(annotation: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = f"{_named(inside[0])}{_bounds(inside[1:])}"
    elif origin is Literal:
        words = " | ".join(map(str, inside))
    elif origin in (Union, UnionType):
        words = " | ".join(map(_named, inside))
    elif origin is Sequence:
        words = f"list of {_named(inside[0])}"
    elif origin is tuple:
        words = f"list of {_named(inside[0])}" if Ellipsis in inside else f"[{', '.join(map(_named, inside))}]"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        words = f"{{{', '.join(annotation.model_fields)}, …}}"
    else:
        words = PLAIN[origin or annotation]
    return words


def _spelled(value: Any) -> str:
    """A default as it is written in YAML."""
    is_plain = isinstance(value, str) and value and value.isprintable()
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False, default=list)
