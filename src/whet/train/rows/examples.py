"""The rows that an offline run learns from: read, split, encoded; what is left out is said and bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from whet.config import DataConfig
from whet.data.load import Source, load_rows
from whet.data.split import salt_of, split_rows
from whet.errors import UserError
from whet.tasks.space import first_held_out

U = TypeVar("U")
Note = Callable[[str], None]
MOST_TOO_LONG = 0.5  # share of rows that may be too long for the model


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Rows of data on two sides of the split, and how many tokens one may have."""

    training: Sequence[Any]
    held_out: Sequence[Any]
    limit: int


def read_material(config: DataConfig, kinds: Sequence[str], what: str, *, context: int, note: Note) -> Material:
    """The rows that a config names, if they are of a kind that the objective can learn from."""
    loaded = load_rows(
        Source(
            path=config.path,
            format=config.format,
            split=config.split,
            subset=config.subset,
            chat=config.chat,
            max_skipped=config.max_skipped,
            ties=config.ties,
            near_duplicates=config.near_duplicates,
        )
    )
    if loaded.kind not in kinds:
        raise UserError(f"{config.path} holds {loaded.kind}, and {what} learns from {' or '.join(kinds)}")
    training, held_out = split_rows(loaded.rows, config.held_out_share, salt=salt_of(config.path))
    # In an order of their own: an evaluation may look at the first ones alone, and files come in parts.
    held_out = first_held_out(held_out, len(held_out))
    if not training or not held_out:
        raise UserError(
            f"{config.path} has {len(loaded.rows)} rows, too few prompts for a training and a held-out side: add rows"
        )
    left_out = ", ".join(f"{count} {reason}" for reason, count in loaded.skipped.items())
    note(
        f"data: {len(training):,} {loaded.kind} to learn from and {len(held_out):,} held out, "
        f"split by prompt{'' if loaded.twins_parted else ', those alike together'}"
        + (f"; left out: {left_out}" if left_out else "")
    )
    if loaded.twins_parted:
        note(
            "data: rows that are alike may be on both sides of the split: "
            "too many share the same words or steps to keep them all together"
        )
    limit = context if config.max_tokens is None else min(context, config.max_tokens)
    return Material(training=training, held_out=held_out, limit=limit)


def encoded(rows: Sequence[Any], encode: Callable[[Sequence[Any]], list[U | None]], note: Note) -> list[U]:
    """What fits of the encoded rows; more than half too long is a mistake."""
    found = encode(rows)
    kept = [one for one in found if one is not None]
    missing = len(found) - len(kept)
    if not kept or missing > MOST_TOO_LONG * len(found):
        raise UserError(
            f"{missing} of {len(found)} completions are too long: raise data.max_tokens, or use a longer context"
        )
    if missing:
        note(f"data: {missing:,} of {len(found):,} completions are too long and are left out")
    return kept
