"""`whet recipes` and `whet sandbox`."""

from __future__ import annotations

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json, say_table, say_text
from whet.errors import UserError, nearest


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


def sandbox(as_json: arguments.AsJson = False) -> None:
    """Say what isolates the programs of task code on this machine.

    It is measured: a program tries to reach the network, files and other processes.

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
