"""Epochs over rows, shuffled by (seed, epoch): resuming needs no state."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from whet.config import DataConfig, OfflineConfig
from whet.data.sources import Loaded, Source, load_rows
from whet.data.split import salt_of, split_rows
from whet.recipe import Config
from whet.tasks.space import epoch_places

R = TypeVar("R")


class EpochSampler(Generic[R]):
    """Draws rows without replacement, each epoch in a new order."""

    def __init__(self, rows: Sequence[R], *, seed: int) -> None:
        self.rows, self._seed = rows, seed

    def draw(self, count: int, *, step: int) -> list[R]:
        """The rows of a step (from 1); every step takes the same number."""
        return [self.rows[index] for index in self._places((step - 1) * count, count)]

    def needed(self, count: int, *, steps: int) -> list[R]:
        """All rows that this many steps draw, once each, in the order of the rows."""
        if count * steps >= len(self.rows):
            return list(self.rows)
        return [self.rows[index] for index in sorted(set(self._places(0, count * steps)))]

    def _places(self, start: int, count: int) -> Iterator[int]:
        return epoch_places(len(self.rows), start, count, "rows", self._seed)


def with_steps(config: Config) -> Config:
    """The config with `epochs` converted to steps, rounded up."""
    if not isinstance(config, OfflineConfig) or config.epochs is None:
        return config
    assert config.data is not None
    _, training, _ = load_sides(config.data)
    steps = math.ceil(config.epochs * len(training) / config.batch_size)
    return config.model_copy(update={"steps": max(1, steps), "epochs": None})


def load_sides(config: DataConfig) -> tuple[Loaded, list[Any], list[Any]]:
    """The rows that a config names, and their split into training and held-out rows."""
    named = config.model_dump(exclude={"held_out_share", "max_tokens", "turns"})
    loaded = load_rows(Source(**named))
    return loaded, *split_rows(loaded.rows, config.held_out_share, salt=salt_of(config.path))
