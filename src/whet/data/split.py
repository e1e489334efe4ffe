"""Training and held-out rows, parted by what the user says first: no prompt, and no conversation, is on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from whet.data.formats import Record
from whet.data.readers import ROWS
from whet.data.rows import prompt_of, prompt_text, spaced
from whet.errors import UserError
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, is_held_out

Row = TypeVar("Row", bound=Record)


def split_rows(rows: Sequence[Row], share: float = HELD_OUT_SHARE, *, salt: str = "") -> tuple[list[Row], list[Row]]:
    """The training and the held-out rows, in their order; about `share` of the conversations are held out.

    Rows that a model made from the training prompts of other data need a `salt`: by the same hash none of them would be
    held out.

    The side depends on the first message of the user alone, so later turns of a conversation that recurs with more
    turns, as Anthropic's do, follow its beginning; and more rows move no row that was there before.
    """
    if not 0 <= share < 1:
        raise UserError(f"data: the held-out share is {share}, must be at least 0 and below 1")
    if share == 0:
        return list(rows), []
    plain = opening if len({opening(row) for row in rows}) > 1 else prompt_text

    def key(row: Record) -> str:
        return salt + plain(row)

    held_out = _held_out({key(row) for row in rows}, share)
    return _side(rows, key, held_out, is_in=False), _side(rows, key, held_out, is_in=True)


def salt_of(path: str) -> str:
    """What the split of a file is salted with: something for the rows that a run made, nothing for others."""
    place = Path(path).expanduser()
    return "made by a run " if place.name == ROWS or (place / ROWS).is_file() else ""


def opening(row: Record) -> str:
    """What the user says first, whatever the white space; the same for a text and for a conversation."""
    prompt = prompt_of(row)
    if isinstance(prompt, str):
        return spaced(prompt)
    said = [turn.content for turn in prompt if turn.role == "user"] or [turn.content for turn in prompt]
    return spaced(said[0]) if said else ""


def _held_out(keys: set[str], share: float) -> set[str]:
    """The keys of the evaluation side: never none and never all, where there are two."""
    held_out = {key for key in keys if is_held_out(key, share)}
    if len(keys) < 2:
        raise UserError("data: all rows have the same prompt, so none can be held out: set the held-out share to 0")
    ordered = sorted(keys, key=lambda key: fingerprint("side", key))
    if not held_out:  # a small set may be unlucky
        return {ordered[0]}
    return held_out - {ordered[-1]} if held_out == keys else held_out


def _side(rows: Sequence[Row], key: Callable[[Record], str], held_out: set[str], *, is_in: bool) -> list[Row]:
    return [row for row in rows if (key(row) in held_out) is is_in]
