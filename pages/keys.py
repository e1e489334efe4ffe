"""docs/keys.md: every key of a recipe, from the config classes.

`python -m pages.keys docs/keys.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pages.markdown import header, row_line
from whet.train.explain.recipe_keys import Key, recipe_keys

INTRODUCTION = """<!-- Written by `make docs` from the config classes. Change the comments there. -->
# The keys of recipes

A recipe is a YAML file of these keys; on the command line they are `KEY=VALUE`, in Python keywords or `overrides`.
`whet keys` prints this list, `whet keys optimizer` a part of it; `whet explain RECIPE` says what they do there.
A dot leads into a section: `optimizer.lr=1e-5` is `optimizer: {lr: 1e-5}`. *needed* means that there is no default.

*Used by* names the loops that have a key: `online` (policy gradients on rollouts), `offline` (SFT, preferences, reward
models), `control` (policies in environments), `off_policy` (SAC and TD3 in environments), `collect` (makes rows from
samples) and `pipeline` (several runs); and the algorithms, objectives or tasks, where only some use it. Formulas are
explained in [algorithms.md](algorithms.md), the names of other libraries in [coming-from.md](coming-from.md).
"""
TOP = "Of a run"  # keys without a section


def render() -> str:
    """The page."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    every = recipe_keys()
    plain = [key for key in every if "." not in key.key]
    inside = [key for key in every if "." in key.key]
    yield from _table(TOP, plain)
    for section, keys in groupby(inside, key=lambda key: key.key.partition(".")[0]):
        yield from _table(f"`{section}`", list(keys))


def _table(title: str, keys: Sequence[Key]) -> Iterator[str]:
    yield f"## {title}\n"
    yield from header("key", "type", "default", "meaning", "used by")
    for key in keys:
        yield row_line(f"`{key.key}`", key.type, f"`{key.default}`", key.meaning, key.used_by)
    yield ""


def main(arguments: Sequence[str]) -> None:
    (page,) = arguments
    Path(page).write_text(render(), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
