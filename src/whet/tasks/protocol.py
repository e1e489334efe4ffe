"""A task is a source of examples and a judge of answers. Knows no models and no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from whet.records import LARGEST_REWARD, Example, Score


@runtime_checkable
class Task(Protocol):
    """What the loop and the evaluation ask of a task. `check_task` tests an implementation.

    The answers of its examples score full marks, unless the task is also `Improvable`.
    """

    @property
    def name(self) -> str: ...

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """`count` training examples; the same seed always gives the same ones.

        The seed ends with the step, so that a finite task can go through all its examples before it repeats one.
        """
        ...

    def held_out(self, count: int) -> list[Example]:
        """The first `count` (or fewer, if there are no more) evaluation examples; none is ever drawn for training."""
        ...

    def score(self, example: Example, text: str) -> Score:
        """The training reward. Pure: the same arguments give the same score."""
        ...

    def correct(self, example: Example, text: str) -> bool:
        """Whether the answer is right: the evaluation metric, which no training reward can change."""
        ...


@runtime_checkable
class Improvable(Protocol):
    """A task whose answers are there to be imitated and may be mediocre, so it says itself what is best."""

    def best(self, example: Example) -> str:
        """A completion that is correct and scores full marks."""
        ...


@runtime_checkable
class Gold(Protocol):
    """A task whose true reward is known, so that it can be seen what training on another one does to it."""

    def gold(self, example: Example, text: str) -> float: ...


class Grader(Protocol):
    """Scores many completions. In this process, or in a worker that can be killed."""

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]: ...

    def close(self) -> None: ...


def is_reward(value: float) -> bool:
    """Whether it is finite and not larger in size than `LARGEST_REWARD`."""
    return abs(value) <= LARGEST_REWARD


def too_large(value: float) -> str:
    """What to add to a sentence about a number that may not be a reward; nothing if it is not even finite."""
    return (
        f", beyond ±{LARGEST_REWARD:g}, above which training overflows: scale it down" if math.isfinite(value) else ""
    )
