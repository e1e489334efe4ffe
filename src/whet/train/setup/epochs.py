"""Epochs over rows, shuffled by (seed, epoch): resuming needs no state."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from whet.config import DataConfig, OfflineConfig, OnlineConfig
from whet.config.loops import Acting, CollectConfig
from whet.data.sources import Loaded, Source, load_rows
from whet.data.split import repeated, salt_of, split_rows
from whet.data.task import sources_of
from whet.recipe import Config
from whet.tasks.loading import load_task
from whet.tasks.space import epoch_places
from whet.tasks.stored import StoredTask

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
    if isinstance(config, CollectConfig | Acting) or config.epochs is None:
        return config
    if isinstance(config, OfflineConfig):
        assert config.data is not None
        rows, each = len(load_sides(config.data)[1]), config.batch_size
    else:
        task = load_task(config.task.name, config.task.options)
        assert isinstance(task, StoredTask)
        rows, each = task.training_rows, config.rollout.prompts
    steps = max(1, math.ceil(config.epochs * rows / each))
    found = config.model_copy(update={"steps": steps, "epochs": None})
    return type(config).model_validate(found.model_dump()) if isinstance(config, OnlineConfig) else found


def load_sides(config: DataConfig) -> tuple[Loaded, Sequence[Any], Sequence[Any]]:
    """The rows that a config names, split into the training rows of an epoch and the held-out rows."""
    of_rows = {"held_out_share", "held_out_rows", "max_tokens", "turns", "sets"}
    named = config.model_dump(exclude=of_rows)
    shared = {key: getattr(config, key) for key in ("chat", "max_skipped", "ties", "near_duplicates", "streaming")}
    several = sources_of([one.model_dump() for one in config.sets], shared)
    loaded = load_rows(*(several or [Source(**named, settings="data")]))
    salt = salt_of(*config.paths)
    training, held_out = split_rows(loaded.rows, config.held_out_share, held_out_rows=config.held_out_rows, salt=salt)
    return loaded, repeated(training, loaded.weights), held_out
