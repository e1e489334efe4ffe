"""`whet recipes`."""

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
