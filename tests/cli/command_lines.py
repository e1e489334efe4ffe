"""Command lines that are shown to readers, checked against the commands that exist."""

import shlex
from typing import Any

import typer

from whet.cli import app as cli
from whet.recipe import packaged_recipes, read_any

PLACEHOLDERS = {"RUN", "DIRECTORY", "ORG/NAME"}


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words begin with, and the words after it; None where there is none."""
    found: Any = typer.main.get_command(cli.app)
    while words and hasattr(found, "commands"):
        if words[0] not in found.commands and found.name == "tasks":  # its shorthand
            words = ["show", *words]
        found, words = found.commands.get(words[0]), words[1:]
    return found, words


def every_command() -> dict[str, Any]:
    """Name → command, those of groups as `group name`."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        inside = getattr(command, "commands", None)
        found |= {f"{name} {inner}": one for inner, one in inside.items()} if inside else {name: command}
    return found


def check_mention(line: str) -> None:
    """A command that prose mentions exists, has these options, and its recipe is packaged or a file."""
    found, words = find_command(shlex.split(line)[1:])
    assert found, line
    options = {option for parameter in found.params for option in parameter.opts}
    assert all(word in options for word in words if word.startswith("--")), line
    if found.name in ("train", "explain", "plan", "recipes"):
        sources = [word for word in words[:1] if not word.startswith("--") and word not in PLACEHOLDERS]
        assert all(source in packaged_recipes() or source.endswith(".yaml") for source in sources), line


def check_example(line: str) -> None:
    """A whole command line parses, and its overrides fit the recipe where that is a packaged one."""
    found, words = find_command(shlex.split(line.partition(" > ")[0])[1:])
    assert found, line
    given = found.make_context(found.name, words).params
    if given.get("source") in packaged_recipes():
        read_any(given["source"], given["overrides"] or [])
