"""Train/eval split: no prompt, no conversation and no leakage group (`twin`) is on both sides.

`load_rows` assigns leakage groups on all rows of a file, so runs that filter the rows differently agree on the split.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from whet.data.columns import spaced
from whet.data.formats import Record, prompt_key
from whet.data.readers import ROWS
from whet.errors import UserError
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, is_held_out

Row = TypeVar("Row", bound=Record)


def split_rows(rows: Sequence[Row], share: float = HELD_OUT_SHARE, *, salt: str = "") -> tuple[list[Row], list[Row]]:
    """The training and the held-out rows, in order; about `share` of the conversations are held out.

    The side is a hash of the row's `twin` or, without one, of the first user message. So a conversation that recurs
    with more turns, as in Anthropic's data, stays on one side. Rows sampled from the training prompts of other data
    need a `salt`: the same hash would hold none of them out.
    """
    if not 0 <= share < 1:
        raise UserError(f"data: the held-out share is {share}, must be at least 0 and below 1")
    if share == 0:
        return list(rows), []
    cluster = clustering(rows)
    keys = [salt + cluster(row) for row in rows]
    held_out = _held_out(set(keys), share)
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row, key in zip(rows, keys, strict=True):
        sides[key in held_out].append(row)
    return sides


def distinguishing(rows: Sequence[Record]) -> Callable[[Record], str]:
    """The text that tells these rows apart: the first user message, or the full prompt if that is always the same."""
    return opening if len({opening(row) for row in rows}) > 1 else prompt_key


def clustering(rows: Sequence[Record]) -> Callable[[Record], str]:
    """The cluster of a row: its `twin`, else its distinguishing text. Splits and intervals treat a cluster as one."""
    text = distinguishing(rows)
    # The prefix changes the hash: tasks split by a hash of `twin` alone, which would put all rows on one side here.
    return lambda row: f"twin {row.twin}" if row.twin else text(row)


def salt_of(path: str) -> str:
    """The salt for the split of a file: non-empty for rows that a run made."""
    place = Path(path).expanduser()
    return "made by a run " if place.name == ROWS or (place / ROWS).is_file() else ""


def opening(row: Record) -> str:
    """The first user message with normalised white space; the same for plain text and a conversation."""
    prompt = row.prompt
    if isinstance(prompt, str):
        return spaced(prompt)
    turns = [turn.content for turn in prompt if turn.role == "user"] or [turn.content for turn in prompt]
    return spaced(turns[0]) if turns else ""


def _held_out(keys: set[str], share: float) -> set[str]:
    """The keys of the evaluation side: at least one, and not all."""
    held_out = {key for key in keys if is_held_out(key, share)}
    if len(keys) < 2:
        raise UserError(
            "data: all rows have the same prompt or twin, so none can be held out: add rows with other prompts"
        )
    ordered = sorted(keys, key=lambda key: fingerprint("side", key))
    if not held_out:  # possible in a small set
        return {ordered[0]}
    return held_out - {ordered[-1]} if held_out == keys else held_out
