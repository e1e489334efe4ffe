"""Train/eval split: no prompt, no conversation and no leakage group (`twin`) is on both sides.

`load_rows` assigns leakage groups on all rows of a file, so runs that filter the rows differently agree on the split.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TypeVar

import numpy as np

from whet.data.columns import spaced
from whet.data.formats import Record, prompt_key
from whet.errors import UserError
from whet.files.disk_rows import picked
from whet.files.readers import ROWS
from whet.records import Prompted
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, held_out_sides, is_held_out

Row = TypeVar("Row", bound=Record)
AnyRow = TypeVar("AnyRow", bound=Prompted)


def split_rows(
    rows: Sequence[Row], share: float = HELD_OUT_SHARE, *, held_out_rows: int | None = None, salt: str = ""
) -> tuple[Sequence[Row], Sequence[Row]]:
    """The training and the held-out rows, in order: see `split_places`."""
    training, evaluation = split_places(rows, share, held_out_rows=held_out_rows, salt=salt)
    return picked(rows, training), picked(rows, evaluation)


def split_places(
    rows: Sequence[Record],
    share: float = HELD_OUT_SHARE,
    *,
    held_out_rows: int | None = None,
    salt: str = "",
    of: str = "data",  # for errors
) -> tuple[Iterator[int], Iterator[int]]:
    """The places of training and held-out rows, in order: about `share` of the conversations, or at most so many rows.

    The side is a hash of the row's `twin` or, without one, of the first user message. So a conversation that recurs
    with more turns, as in Anthropic's data, stays on one side. Rows sampled from the training prompts of other data
    need a `salt`: the same hash would hold none of them out.
    """
    if not 0 <= share <= 1:
        raise UserError(f"held_out_share is {share}, must be from 0 to 1")
    cluster = clustering(rows)
    held_out = held_out_sides((salt + cluster(row) for row in rows), share, held_out_rows)
    if not any(held_out) and (share > 0 if held_out_rows is None else held_out_rows > 0):
        one = len({cluster(row) for row in rows}) < 2
        why = "all rows have the same prompt or twin" if one else "rows with the same prompt or twin are too many"
        raise UserError(
            f"{of}: {why}, so none can be held out: add rows with other prompts, or train on all of them without "
            "evaluation (held_out_rows=0, eval.every_steps=0)"
        )
    is_trained = (not side for side in held_out)
    return compress(range(len(rows)), is_trained), compress(range(len(rows)), held_out)


def repeated(rows: Sequence[AnyRow], weights: Mapping[str, float]) -> Sequence[AnyRow]:
    """The rows of an epoch: each as often as the weight of its set says, of a fraction the rows with the lowest hashes.

    A weight of 2.5 takes every row twice and half of them a third time, always the same half. The names of `weights`
    begin the ids of the rows of a set; rows of other sets come once.
    """
    if not weights:
        return rows

    def places() -> Iterator[int]:
        for place, row in enumerate(rows):
            weight = weights.get(row.id.partition("-")[0], 1.0)
            times = int(weight) + is_held_out(f"weight {row.id}", weight % 1)
            yield from (place,) * times

    return picked(rows, places())


def first_places(texts: Iterable[str]) -> Sequence[int]:
    """For each text the place of the first that equals it, by 64-bit hashes: memory is a few bytes per text."""
    hashes = np.frombuffer(array("Q", (fingerprint("text", text) for text in texts)), dtype=np.uint64)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return array("Q", first[inverse].astype(np.uint64).tobytes())


def distinguishing(rows: Iterable[Record]) -> Callable[[Record], str]:
    """The text that tells these rows apart: the first user message, or the full prompt if that is always the same."""
    openings = map(opening, rows)
    first = next(openings, "")
    return opening if any(other != first for other in openings) else prompt_key


def clustering(rows: Iterable[Record]) -> Callable[[Record], str]:
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
