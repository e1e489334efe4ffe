"""Rollouts as they are kept on disk: with the text of every sampled token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any

from whet.models.protocol import Tokenizer


def spelled(groups: Sequence[Sequence[Mapping[str, Any]]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The rows of all groups, each with the text of its sampled tokens one by one."""
    rows = list(chain.from_iterable(groups))
    chosen = list(set(chain.from_iterable(compress(row["tokens"], row["mask"]) for row in rows)))
    texts = dict(zip(chosen, tokenizer.decode_many([[token] for token in chosen]), strict=True))
    for row in rows:
        yield {**row, "pieces": [texts[token] for token in compress(row["tokens"], row["mask"])]}
