"""`whet keys`: the keys of recipes."""

from dataclasses import asdict

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json
from whet.errors import UserError, nearest


def keys(
    search: str = typer.Argument(None, metavar="SEARCH", help="A part of a key or of its meaning."),
    as_json: arguments.AsJson = False,
) -> None:
    """List the keys of recipes: type, default, meaning, users.

    A key is written in a recipe or as KEY=VALUE on the command line. docs/keys.md has the same list.

    \b
    Examples:
      whet keys
      whet keys optimizer
      whet keys "gradient clipping" --json
    """
    from whet.config.spellings import known_as
    from whet.train.explain.recipe_keys import NEEDED, recipe_keys

    every = recipe_keys()
    words = (search or "").lower()
    found = [key for key in every if words in key.key.lower()] or [
        key for key in every if words in key.meaning.lower() or words in key.used_by.lower()
    ]
    if not found:
        hint = known_as(words) or nearest(words, (key.key for key in every))
        raise UserError(f"no key has {search!r} in its name or meaning{hint}")
    if as_json:
        say_json([asdict(key) for key in found])
        return
    for key in found:  # no table: in a narrow terminal it would cut the keys
        default = key.default if key.default == NEEDED else f"default {key.default}"
        say(f"{key.key}: {key.type}, {default}  ({key.used_by})")
        say(f"    {key.meaning}")
