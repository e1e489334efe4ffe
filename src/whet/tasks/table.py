"""The tasks by name. A new task is one file and one line here; a user's own task is named `module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from whet.errors import UserError, nearest
from whet.imports import is_object, load_named, one_line
from whet.tasks.procedural import Arithmetic, Reverse, Sorting
from whet.tasks.protocol import Task
from whet.tasks.reviews import Reviews
from whet.tasks.rows import Rows

TASKS: dict[str, type[Task]] = {
    "arithmetic": Arithmetic,
    "reverse": Reverse,
    "reviews": Reviews,
    "sorting": Sorting,
    "rows": Rows,
}

ELSEWHERE = {"data": "whet.data.task:DataTask"}  # packaged too, in a room that knows this one

VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
# Annotations are strings where a module asks for it, types elsewhere; others than these are the class's own business.
PLAIN_TYPES: dict[Any, type] = {
    **{"int": int, "float": float, "bool": bool, "str": str},
    **{int: int, float: float, bool: bool, str: str},
}


def load_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of this name, made with these options."""
    make = _maker(name, options)
    try:
        task = make()
        complete = isinstance(task, Task)  # looks at `name`, which is the user's code too
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"task {name} refuses its options: {one_line(error)}") from error
    if not complete:
        raise UserError(f"task {name} is not a task: it needs name, draw, held_out, score and correct")
    found: Task = task
    return found


def _maker(name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
    """What makes the task; an object that was passed in Python is made already."""
    given = load_named(name, "task") if is_object(name) else None
    if given is None or isinstance(given, type):
        task_class = find_task(name)
        _check_options(name, task_class, options)
        return partial(task_class, **options)
    if options:
        raise UserError(f"task {name} is an object and has its options already: leave out {', '.join(options)}")
    return lambda: given


def find_task(name: str) -> type[Task]:
    """The class of a task from the table, or the user's own from `module:Class`."""
    if name in TASKS:
        return TASKS[name]
    name = ELSEWHERE.get(name, name)
    if ":" not in name:
        known = ", ".join(TASKS)
        raise UserError(f"there is no task '{name}'{nearest(name, TASKS)} (known: {known}; your own: module:Class)")
    found = load_named(name, "task")
    if not isinstance(found, type):
        raise UserError(f"task '{name}' must name a class, not a {type(found).__name__}")
    return found


def task_options(task_class: type[Task]) -> dict[str, inspect.Parameter]:
    """The options that a task takes, by name."""
    try:
        return dict(inspect.signature(task_class).parameters)
    except ValueError as error:
        raise UserError(f"{task_class.__name__} does not say which options it takes, so it is no task") from error


def _check_options(name: str, task_class: type[Task], options: Mapping[str, Any]) -> None:
    accepted = task_options(task_class)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    named = {key: p for key, p in accepted.items() if p.kind not in VARIADIC}
    for key, value in options.items():
        if key in named:
            _check_type(name, key, named[key].annotation, value)
        elif not takes_any:
            valid = ", ".join(named) or "none"
            raise UserError(f"task {name} has no option '{key}'{nearest(key, named)} (options: {valid})")
    for key, parameter in named.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise UserError(f"task {name} needs the option '{key}'")


def _check_type(name: str, key: str, annotation: Any, value: Any) -> None:
    wanted = PLAIN_TYPES.get(annotation)
    if wanted is None or type(value) is wanted or (wanted is float and type(value) is int):
        return
    raise UserError(f"task {name}: option '{key}' is {value!r} ({type(value).__name__}), must be {wanted.__name__}")
