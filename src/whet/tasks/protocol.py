"""A task is a source of examples and a judge of answers. Knows no models and no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from whet.records import Example, Score


@runtime_checkable
class Task(Protocol):
    """What the loop and the evaluation ask of a task. `check_task` tests an implementation."""

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


class Grader(Protocol):
    """Scores many completions. In this process, or in a worker that can be killed."""

    def grade(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Score]: ...

    def close(self) -> None: ...
