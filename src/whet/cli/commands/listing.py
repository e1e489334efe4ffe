"""`whet tasks` and `whet recipes`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text
from whet.errors import UserError, nearest

if TYPE_CHECKING:
    from whet.records import Example
    from whet.tasks.protocol import Task


def tasks(
    name: str = typer.Argument(None, metavar="NAME", help="A task to show and check; your own: file.py:Class."),
    options: arguments.TaskOptions = None,
    count: int = typer.Option(3, min=1, help="Training and held-out prompts to show, each."),
    seed: int = typer.Option(0, min=0, help="Seed of the training prompts that are shown."),
    as_json: arguments.AsJson = False,
) -> None:
    """List the tasks, or check one and show its prompts. A task is prompts with a reward.

    \b
    Examples:
      whet tasks
      whet tasks arithmetic level=3
    """
    from whet.tasks.check import check_task
    from whet.tasks.loading import TASKS, find_task, load_task

    if name is None:
        rows = [_about_task(key, kind) for key, kind in TASKS.items()]
        if as_json:
            say_json(rows)
            return
        say_table([(row["name"], row["about"], _spell(row["options"])) for row in rows], "task", "about", "options")
        say("look at one: whet tasks NAME [KEY=VALUE]...    your own: module:Class")
        return
    about = _about_task(name, find_task(name))
    task = load_task(name, arguments.read_options(options or []))
    check_task(task)
    sides = {"training": task.draw(count, seed=(seed,)), "held out": task.held_out(count)}
    if as_json:
        drawn = {side.replace(" ", "_"): [_row(example) for example in shown] for side, shown in sides.items()}
        say_json({**about, "checked": True, **drawn})
        return
    say(f"{name}: {about['about']}")
    say(f"options: {_spell(about['options']) or 'none'}")
    for side, shown in sides.items():
        say_text(f"\n{side}")
        for example in shown:
            say(f"  {example.prompt_text!r} → {example.answer!r}")
    ungraded = all(task.correct(one, one.answer) is None for some in sides.values() for one in some)
    graded = "no answers: the reward comes from elsewhere" if ungraded else "the answer scores best"
    say_text(f"\ncheck_task: passed (same seed, same examples; no overlap; {graded})")


def recipes(
    name: str = typer.Argument(None, metavar="NAME", help="A recipe to print."), as_json: arguments.AsJson = False
) -> None:
    """List the packaged recipes, or print one as YAML.

    \b
    Examples:
      whet recipes
      whet recipes grpo-sorting > mine.yaml
    """
    from whet.recipe import packaged_recipes, parse_yaml

    packaged = packaged_recipes()
    if name is not None:
        if name not in packaged:
            raise UserError(f"no recipe {name!r}{nearest(name, packaged)} (see `whet recipes`)")
        if as_json:
            say_json(parse_yaml(packaged[name], where=name))
        else:
            say_text(packaged[name], end="")
        return
    rows = [{"name": key, "about": text.partition("\n")[0].lstrip("# ").strip()} for key, text in packaged.items()]
    if as_json:
        say_json(rows)
        return
    say_table([tuple(row.values()) for row in rows], "recipe", "about")
    say("print one: whet recipes NAME    what it does: whet explain NAME    run it: whet train NAME")


def _about_task(name: str, kind: type[Task]) -> dict[str, Any]:
    from whet.tasks.loading import task_options

    options = {
        key: {
            "type": _type_name(parameter.annotation),
            **({} if parameter.default is parameter.empty else {"default": parameter.default}),  # none: required
        }
        for key, parameter in task_options(kind).items()
    }
    return {"name": name, "about": (inspect.getdoc(kind) or "").partition("\n")[0], "options": options}


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


def sandbox(as_json: arguments.AsJson = False) -> None:
    """Say what isolates the programs of task code on this machine, measured by a program that tries to get out.

    \b
    Examples:
      whet sandbox
      whet sandbox --json
    """
    from whet.tasks.sandbox.isolation import Limits
    from whet.tasks.sandbox.sandbox import Sandbox, described

    report = Sandbox(Limits()).report()
    if as_json:
        say_json(report)
        return
    say(described(report))
    for name, how in (*report["active"].items(), *((name, f"no: {why}") for name, why in report["refused"].items())):
        say(f"  {name}: {how}")
    for name, is_out in report["cannot_reach"].items():
        say(f"  a program can{'not' if is_out else ''} reach {name}")
