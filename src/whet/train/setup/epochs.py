"""Epochs over rows, shuffled by (seed, epoch): a resumed run needs no state to go on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from whet.tasks.space import epoch_places

R = TypeVar("R")


class EpochSampler(Generic[R]):
    """Draws rows without replacement, epoch after epoch, each in an order of its own."""

    def __init__(self, rows: Sequence[R], *, seed: int) -> None:
        self.rows, self._seed = rows, seed

    def draw(self, count: int, *, step: int) -> list[R]:
        """The rows of a step, counted from 1; every step takes the same number."""
        return [self.rows[index] for index in self._places((step - 1) * count, count)]

    def needed(self, count: int, *, steps: int) -> list[R]:
        """Every row that so many steps draw, once each, in the order of the rows."""
        if count * steps >= len(self.rows):
            return list(self.rows)
        return [self.rows[index] for index in sorted(set(self._places(0, count * steps)))]

    def _places(self, start: int, count: int) -> Iterator[int]:
        return epoch_places(len(self.rows), start, count, "rows", self._seed)
