"""What tasks with stored examples have in common: the split, the epochs of training, the evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from whet.errors import UserError
from whet.records import Example
from whet.tasks.space import epoch_places, first_held_out, held_out_sides

RESERVED = ("prompts", "completions")  # argument names of reward functions
Sides = tuple[Sequence[Example], Sequence[Example]]  # for training and for evaluation, in row order


class StoredTask(ABC):
    """A task whose examples are rows of a file or data set."""

    @cached_property
    @abstractmethod
    def _sides(self) -> Sides:
        """The training and the evaluation examples; on disk if the rows are streamed."""

    @property
    def sides(self) -> Sides:
        return self._sides

    @property
    def training_rows(self) -> int:
        """The training examples of an epoch."""
        return len(self._sides[0])

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """The training examples in shuffled epochs; the seed ends with the step, from 1."""
        training, (*run, step) = self._sides[0], seed
        if not training:
            raise UserError("all prompts of the task are held out and none is left to train on: lower held_out_share")
        places = epoch_places(len(training), (step - 1) * count, count, "training", *run)
        return [training[place] for place in places]

    def held_out(self, count: int) -> list[Example]:
        return first_held_out(self._sides[1], count)


def split_examples(examples: Sequence[Example], keys: Iterable[str], share: float, rows: int | None) -> Sides:
    """The examples of both sides; those with the same key stay together."""
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example, side in zip(examples, held_out_sides(keys, share, rows), strict=True):
        sides[side].append(example)
    return sides


class FittedTask(StoredTask):
    """A stored task with other examples: those that fit a model, or shortened ones. The rest is the task's own."""

    def __init__(self, task: StoredTask, sides: Sides) -> None:
        self._task, self._fitted = task, sides

    @cached_property
    def _sides(self) -> Sides:
        return self._fitted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)
