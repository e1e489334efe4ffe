"""Training and held-out rows: no prompt, no conversation and no two rows with the same `twin` are on both sides.

Likeness is not looked for here: `load_rows` has marked twins, on all rows of the file, so that runs which filter the
rows of a file differently still agree on sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from whet.data.formats import Record
from whet.data.readers import ROWS
from whet.data.rows import prompt_text, spaced
from whet.errors import UserError
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, is_held_out

Row = TypeVar("Row", bound=Record)


def split_rows(rows: Sequence[Row], share: float = HELD_OUT_SHARE, *, salt: str = "") -> tuple[list[Row], list[Row]]:
    """The training and the held-out rows, in their order; about `share` of the conversations are held out.

    Rows that a model made from the training prompts of other data need a `salt`: by the same hash none of them would be
    held out.

    The side depends on the row's `twin` alone, or on the first message of the user where it has none. So later turns of
    a conversation that recurs with more turns, as Anthropic's do, follow its beginning. More rows move another only
    where they change its `twin` (`data/twins.py`).
    """
    if not 0 <= share < 1:
        raise UserError(f"data: the held-out share is {share}, must be at least 0 and below 1")
    if share == 0:
        return list(rows), []
    cluster = clustering(rows)

    def key(row: Record) -> str:
        return salt + cluster(row)

    held_out = _held_out({key(row) for row in rows}, share)
    return _side(rows, key, held_out, is_in=False), _side(rows, key, held_out, is_in=True)


def telling(rows: Sequence[Record]) -> Callable[[Record], str]:
    """What tells these rows apart: what the user says first, or the whole prompt where that is the same in all."""
    return opening if len({opening(row) for row in rows}) > 1 else prompt_text


def clustering(rows: Sequence[Record]) -> Callable[[Record], str]:
    """What a row has in common with those of these rows that are alike: no split parts them, no interval counts each.

    That is its `twin`; where it has none, what tells it apart.
    """
    tell = telling(rows)

    def cluster(row: Record) -> str:
        # A task parts its own examples by a hash of `twin` alone; by the same one all of them would be on one side.
        return f"twin {row.twin}" if row.twin else tell(row)

    return cluster


def salt_of(path: str) -> str:
    """What the split of a file is salted with: something for the rows that a run made, nothing for others."""
    place = Path(path).expanduser()
    return "made by a run " if place.name == ROWS or (place / ROWS).is_file() else ""


def opening(row: Record) -> str:
    """What the user says first, whatever the white space; the same for a text and for a conversation."""
    prompt = row.prompt
    if isinstance(prompt, str):
        return spaced(prompt)
    said = [turn.content for turn in prompt if turn.role == "user"] or [turn.content for turn in prompt]
    return spaced(said[0]) if said else ""


def _held_out(keys: set[str], share: float) -> set[str]:
    """The keys of the evaluation side: never none and never all, where there are two."""
    held_out = {key for key in keys if is_held_out(key, share)}
    if len(keys) < 2:
        raise UserError(
            "data: all rows have the same prompt or twin, so none can be held out: set the held-out share to 0"
        )
    ordered = sorted(keys, key=lambda key: fingerprint("side", key))
    if not held_out:  # a small set may be unlucky
        return {ordered[0]}
    return held_out - {ordered[-1]} if held_out == keys else held_out


def _side(rows: Sequence[Row], key: Callable[[Record], str], held_out: set[str], *, is_in: bool) -> list[Row]:
    return [row for row in rows if (key(row) in held_out) is is_in]
