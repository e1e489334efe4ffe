"""`whet learn`: exercises in a folder of the learner's own, checked and explained, never solved."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text, show_help
from whet.learn import folder as learner
from whet.learn.catalogue import EXERCISES, find, number_of
from whet.learn.examination import Verdict, examine
from whet.learn.exercise import PHASES, Exercise

app = typer.Typer(help="Exercises to docs/learn: checked and explained, never solved.", rich_markup_mode=None)
Folder = Annotated[Path, typer.Option("--folder", "-d", help="The folder of your answers.")]
Which = Annotated[str, typer.Argument(metavar="N", help="Number or name of an exercise: `whet learn list`.")]
HERE = Path("learn")


@app.callback(invoke_without_command=True)
def _help(context: typer.Context) -> None:
    show_help(context)


@app.command("list")
def listed(folder: Folder = HERE, as_json: arguments.AsJson = False) -> None:
    """List the exercises by phase, with what you have done.

    Example: whet learn list
    """
    records = learner.progress(folder)
    states = {one.name: records[one.name].state if one.name in records else "" for one in EXERCISES}
    if as_json:
        say_json([{**_facts(one), "state": states[one.name]} for one in EXERCISES])
        return
    for phase in PHASES:
        say(f"{phase}:")
        exercises = [one for one in EXERCISES if one.phase == phase]
        say_table([[f"{number_of(one):>2} {one.name}", one.title, states[one.name]] for one in exercises], box=None)


@app.command()
def start(number: Which, folder: Folder = HERE, as_json: arguments.AsJson = False) -> None:
    """Copy the file of an exercise into your folder.

    \b
    Examples:
      whet learn start 1
      whet learn start gae --folder exercises
    """
    exercise = find(number)
    file = learner.start(folder, exercise)
    if as_json:
        say_json({**_facts(exercise), "file": file})
        return
    say(f"{file}: {exercise.title}")
    if exercise.recipe:
        say(f"run its recipe: `whet train {folder / exercise.recipe.name}`")
    say(f"read docs/learn/{exercise.chapter}, fill the file in, then `whet learn check {number}{_of(folder)}`")


@app.command()
def check(number: Which, folder: Folder = HERE, as_json: arguments.AsJson = False) -> None:
    """Check your file of an exercise: what is wrong and why. The exit code is 1 if something is.

    The file is run in a process of its own, which is ended if it does not come to an end by itself.

    Example: whet learn check 1
    """
    exercise = find(number)
    verdict = examine(exercise, learner.begun(folder, exercise))
    learner.checked(folder, exercise, solved=verdict.remark is None)
    if as_json:
        say_json({**_facts(exercise), "solved": verdict.remark is None, "of": len(exercise.checks), **asdict(verdict)})
    else:
        _say_verdict(exercise, verdict, folder)
    if verdict.remark:
        raise typer.Exit(1)


@app.command()
def hint(number: Which, folder: Folder = HERE, as_json: arguments.AsJson = False) -> None:
    """Show the next hint of an exercise; each goes a step further, and none is the solution.

    Example: whet learn hint 1
    """
    exercise = find(number)
    step, text = learner.next_hint(folder, exercise)
    if as_json:
        say_json({**_facts(exercise), "hint": text, "step": step, "of": len(exercise.hints)})
        return
    say(f"hint {step} of {len(exercise.hints)}: {text}")
    if step == len(exercise.hints):
        say(f"that was the last one; docs/learn/{exercise.chapter} has the formula")


@app.command()
def progress(folder: Folder = HERE, as_json: arguments.AsJson = False) -> None:
    """Show what is solved and begun in your folder.

    Example: whet learn progress
    """
    records = learner.progress(folder)
    solved = sum(record.state == "solved" for record in records.values())
    following = next((one for one in EXERCISES if one.name not in records or records[one.name].state != "solved"), None)
    if as_json:
        found = {name: asdict(record) for name, record in records.items()}
        say_json({"solved": solved, "of": len(EXERCISES), "next": following.name if following else None, "seen": found})
        return
    rows = [[name, one.state, str(one.checks), str(one.hints)] for name, one in records.items()]
    if rows:
        say_table(rows, "exercise", "state", "checks", "hints", box=None)
    say(
        f"{solved} of {len(EXERCISES)} solved"
        + (f"; next: `whet learn start {following.name}{_of(folder)}`" if following else "")
    )


def _of(folder: Path) -> str:
    """The option that names the folder again, for a command that is suggested."""
    return "" if folder == HERE else f" --folder {folder}"


def _facts(exercise: Exercise) -> dict[str, str | int]:
    return {
        "number": number_of(exercise),
        "name": exercise.name,
        "title": exercise.title,
        "phase": exercise.phase,
        "chapter": f"docs/learn/{exercise.chapter}",
    }


def _say_verdict(exercise: Exercise, verdict: Verdict, folder: Path) -> None:
    if verdict.printed:
        say_text(f"your file printed:\n{verdict.printed}")
    if verdict.remark is None:
        say(f"solved: all {len(exercise.checks)} checks of {exercise.name!r} passed")
        return
    end = "" if verdict.remark.sentence.endswith((".", "?", ".)")) else "."
    say(f"{verdict.passed} of {len(exercise.checks)} checks passed, then: {verdict.remark.sentence}{end}")
    if verdict.remark.example:
        say_text(verdict.remark.example)
    say(f"stuck? `whet learn hint {number_of(exercise)}{_of(folder)}`")
