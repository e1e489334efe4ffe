"""`whet tasks list` and `whet tasks show`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text

if TYPE_CHECKING:
    from whet.records import Example
    from whet.tasks.protocol import Task

COUNTED = 20_000  # held-out examples of a generated task beyond which they are not counted


def list_tasks(as_json: arguments.AsJson = False) -> None:
    """List the packaged tasks with their options.

    Example: whet tasks list
    """
    from whet.tasks.loading import ELSEWHERE, TASKS, find_task

    rows = [about_task(name, find_task(name)) for name in sorted((*TASKS, *ELSEWHERE))]
    if as_json:
        say_json(rows)
        return
    say_table([(row["name"], row["about"], _spell(row["options"])) for row in rows], "task", "about", "options")
    say("look at one: whet tasks NAME [KEY=VALUE]...    your own: module:Class")
    say("answer it yourself: whet tasks play NAME    attack its reward: whet tasks check NAME")


def show(
    name: str = typer.Argument(..., metavar="NAME", help="A task; your own: file.py:Class."),
    options: arguments.TaskOptions = None,
    count: int = typer.Option(3, min=1, help="Training and held-out prompts to show, each."),
    seed: int = typer.Option(0, min=0, help="Seed of the training prompts that are shown."),
    as_json: arguments.AsJson = False,
) -> None:
    """Show prompts, answers, columns and options of a task, and check what it promises.

    \b
    Examples:
      whet tasks show arithmetic level=3
      whet tasks rows path=problems.jsonl --count 10
    """
    from whet.tasks.check import check_task
    from whet.tasks.loading import find_task, load_task
    from whet.tasks.protocol import has_environment
    from whet.tasks.stepping.check_environment import check_environment

    kind = find_task(name)
    about = about_task(name, kind)
    task = load_task(name, arguments.read_options(options or []))
    check_task(task)
    if has_environment(task):
        check_environment(task)
    sides = {"training": task.draw(count, seed=(seed,)), "held out": task.held_out(count)}
    sizes = _sizes(task)
    if as_json:
        drawn = {side.replace(" ", "_"): [_row(example) for example in shown] for side, shown in sides.items()}
        say_json({**about, "checked": True, "sizes": sizes, **drawn})
        return
    say(f"{name}: {about['about']}")
    say(f"options: {_spell(about['options']) or 'none'}")
    for key, option in about["options"].items():
        if option.get("meaning"):
            say(f"  {key}: {option['meaning']}")
    for side, shown in sides.items():
        total = sizes.get(side.replace(" ", "_"))
        say_text(f"\n{side}" + (f" ({total:,} examples)" if total is not None else ""))
        for example in shown:
            say(f"  {example.prompt_text!r} → {example.answer!r}")
    say(f"\ncolumns: {', '.join(sides['training'][0].columns) or 'none'}".lstrip("\n"))
    ungraded = all(task.correct(one, one.answer) is None for some in sides.values() for one in some)
    graded = "no answers: the reward comes from elsewhere" if ungraded else "the answer scores best"
    say_text(f"\ncheck_task: passed (same seed, same examples; no overlap; {graded})")
    if has_environment(task):
        say_text("check_environment: passed (same texts, same answers; any text is answered; none shares its state)")


def about_task(name: str, kind: type[Task]) -> dict[str, Any]:
    from whet.tasks.loading import task_options

    meanings = _meanings(kind)
    options = {
        key: {
            "type": _type_name(parameter.annotation),
            **({} if parameter.default is parameter.empty else {"default": _default(parameter)}),  # none: required
            **({"meaning": meanings[key]} if meanings.get(key) else {}),
        }
        for key, parameter in task_options(kind).items()
    }
    return {"name": name, "about": (inspect.getdoc(kind) or "").partition("\n")[0], "options": options}


def _default(parameter: inspect.Parameter) -> Any:
    """The default; of a dataclass's factory it has a placeholder, and all of them make empty mappings."""
    return {} if repr(parameter.default) == "<factory>" else parameter.default


def _meanings(kind: type[Task]) -> dict[str, str]:
    """The comments beside the fields of a task; none where there is no source to read."""
    from whet.train.explain.recipe_keys import field_comments

    try:
        return dict(field_comments(kind))
    except (OSError, TypeError, SyntaxError):
        return {}


def _sizes(task: Task) -> dict[str, int]:
    """The number of training and held-out examples, where they are finite and few enough to be counted."""
    from whet.tasks.procedural import Procedural
    from whet.tasks.stored import StoredTask

    if isinstance(task, StoredTask):
        training, held_out = task.sides
        return {"training": len(training), "held_out": len(held_out)}
    if not isinstance(task, Procedural) or task.problems > COUNTED:
        return {}
    held_out_count = len(task.held_out(task.problems))
    return {"training": task.problems - held_out_count, "held_out": held_out_count}


def _type_name(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "any"
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _spell(options: Mapping[str, Mapping[str, Any]]) -> str:
    """As on the command line: true, not True."""
    found = []
    for key, option in options.items():
        value = option.get("default", "… (needed)")
        found.append(f"{key}={value if isinstance(value, str) else json.dumps(value, default=str)}")
    return ", ".join(found)


def _row(example: Example) -> dict[str, Any]:
    columns = dict(example.columns)
    return {"id": example.id, "prompt": example.prompt_text, "answer": example.answer, "columns": columns}
