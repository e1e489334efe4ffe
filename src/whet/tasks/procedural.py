"""What the procedural tasks share: how problems become examples, and how an answer is marked.

    reward = 0.8 · correct + 0.2 · partial

`partial` is the share of characters that stand in their place, out of the longer of the two texts. It reaches 1 only
when both are equal, so nothing that is wrong earns as much as 0.2 and everything that is right earns exactly 1:
neither listing several answers nor writing more than was asked pays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.space import Problem, Space

CORRECT_WEIGHT = 0.8
PARTIAL_WEIGHT = 0.2


@dataclass(frozen=True, kw_only=True)
class Procedural(ABC):
    """A task whose problems are numbered instead of stored."""

    level: int = 1
    chat: bool = False  # pose it as an instruction, and grade what the answer ends with

    name: ClassVar[str]
    highest_level: ClassVar[int]
    instruction: ClassVar[str]  # with {question}; asked in a chat
    sign: ClassVar[str] = ">"  # stands between question and answer elsewhere

    def __post_init__(self) -> None:
        if not 1 <= self.level <= self.highest_level:
            raise UserError(f"task {self.name}: level is {self.level}, must be between 1 and {self.highest_level}")
        self._space.require_both_sides(f"task {self.name} at level {self.level}{self._variant}")

    @property
    def alphabet(self) -> str:
        """Every character of prompts and answers, sorted."""
        frame = self.instruction.format(question="") if self.chat else self.sign
        return "".join(sorted(set(self._characters + frame)))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        return mark(self._given(text), example.answer)

    def correct(self, example: Example, text: str) -> bool:
        return self._given(text) == example.answer

    @property
    def _variant(self) -> str:
        """What besides the level makes the problems, in words."""
        return ""

    @property
    @abstractmethod
    def _space(self) -> Space: ...

    @property
    @abstractmethod
    def _characters(self) -> str:
        """All that questions and answers are made of."""

    @abstractmethod
    def _last(self, text: str) -> str:
        """The answer that a text in a chat ends with."""

    def _spelled(self, question: str) -> str:
        """The question as an instruction writes it."""
        return question

    def _example(self, problem: Problem) -> Example:
        asked = self.instruction.format(question=self._spelled(problem.question))
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=(Message(role="user", content=asked),) if self.chat else f"{problem.question}{self.sign}",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )

    def _given(self, text: str) -> str:
        return self._last(text) if self.chat else text.strip()


def mark(given: str, answer: str) -> Score:
    """The score of `given` where `answer` is the only right text."""
    correct = float(given == answer)
    partial = share_in_place(given, answer)
    reward = CORRECT_WEIGHT * correct + PARTIAL_WEIGHT * partial
    return Score(reward=reward, parts={"correct": correct, "partial": partial})


def share_in_place(given: str, answer: str) -> float:
    """Characters of `given` that equal the answer's at the same position, over the longer length; 0 for no text."""
    longest = max(len(given), len(answer))
    same = sum(a == b for a, b in zip(given, answer, strict=False))
    return same / longest if longest else 0.0
