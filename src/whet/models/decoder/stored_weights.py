"""The weights of a decoder as its family stores them, block by block, whether it is whole or spread over processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from torch import Tensor

from whet.models.decoder.family import Family
from whet.models.storage.tensor_file import Whole, shape_of

BLOCK = re.compile(r"\.layers\.(\d+)\.")


def stored_shapes(family: Family, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors without their numbers."""
    return family.export_weights({name: shape_of(tensor) for name, tensor in weights.items()})


def stored_pieces(family: Family, weights: Mapping[str, Tensor], whole: Whole) -> Iterator[tuple[str, Tensor]]:
    """The stored tensors in the order of the weights; those of one block are in memory at a time.

    A family joins and turns matrices of one block only.
    """
    for _, names in groupby(weights, key=_block):
        yield from family.export_weights({name: whole(weights[name]) for name in names}).items()


def _block(name: str) -> str:
    found = BLOCK.search(name)
    return "" if found is None else found[1]
