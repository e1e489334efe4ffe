"""Train/eval split: no prompt, no conversation and no leakage group (`twin`) is on both sides.

`load_rows` assigns leakage groups on all rows of a file, so runs that filter the rows differently agree on the split.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from whet.data.columns import spaced
from whet.data.formats import Record, prompt_key
from whet.errors import UserError
from whet.files.readers import ROWS
from whet.records import Prompted
from whet.tasks.space import HELD_OUT_SHARE, held_out_keys, is_held_out

Row = TypeVar("Row", bound=Record)
AnyRow = TypeVar("AnyRow", bound=Prompted)


def split_rows(
    rows: Sequence[Row], share: float = HELD_OUT_SHARE, *, held_out_rows: int | None = None, salt: str = ""
) -> tuple[list[Row], list[Row]]:
    """The training and the held-out rows, in order: about `share` of the conversations, or at most so many rows.

    The side is a hash of the row's `twin` or, without one, of the first user message. So a conversation that recurs
    with more turns, as in Anthropic's data, stays on one side. Rows sampled from the training prompts of other data
    need a `salt`: the same hash would hold none of them out.
    """
    if not 0 <= share <= 1:
        raise UserError(f"data: the held-out share is {share}, must be from 0 to 1")
    cluster = clustering(rows)
    keys = [salt + cluster(row) for row in rows]
    held_out = held_out_keys(keys, share, held_out_rows)
    if not held_out and (share > 0 if held_out_rows is None else held_out_rows > 0):
        one = len(set(keys)) < 2
        why = "all rows have the same prompt or twin" if one else "rows with the same prompt or twin are too many"
        raise UserError(
            f"data: {why}, so none can be held out: add rows with other prompts, or train on all of them without "
            "evaluation (held_out_rows=0, eval.every_steps=0)"
        )
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row, key in zip(rows, keys, strict=True):
        sides[key in held_out].append(row)
    return sides


def repeated(rows: Sequence[AnyRow], weights: Mapping[str, float]) -> list[AnyRow]:
    """The rows of an epoch: each as often as the weight of its id says, of a fraction the rows with the lowest hashes.

    A weight of 2.5 takes every row twice and half of them a third time, always the same half.
    """
    found: list[AnyRow] = []
    for row in rows:
        weight = weights.get(row.id, 1.0)
        times = int(weight) + is_held_out(f"weight {row.id}", weight % 1)
        found += [row] * times
    return found


def distinguishing(rows: Sequence[Record]) -> Callable[[Record], str]:
    """The text that tells these rows apart: the first user message, or the full prompt if that is always the same."""
    return opening if len({opening(row) for row in rows}) > 1 else prompt_key


def clustering(rows: Sequence[Record]) -> Callable[[Record], str]:
    """The cluster of a row: its `twin`, else its distinguishing text. Splits and intervals treat a cluster as one."""
    text = distinguishing(rows)
    # The prefix changes the hash: tasks split by a hash of `twin` alone, which would put all rows on one side here.
    return lambda row: f"twin {row.twin}" if row.twin else text(row)


def salt_of(*paths: str) -> str:
    """The salt for the split of files: non-empty if a run made the rows of one of them."""
    places = [Path(path).expanduser() for path in paths]
    return "made by a run " if any(place.name == ROWS or (place / ROWS).is_file() for place in places) else ""


def opening(row: Record) -> str:
    """The first user message with normalised white space; the same for plain text and a conversation."""
    prompt = row.prompt
    if isinstance(prompt, str):
        return spaced(prompt)
    turns = [turn.content for turn in prompt if turn.role == "user"] or [turn.content for turn in prompt]
    return spaced(turns[0]) if turns else ""
