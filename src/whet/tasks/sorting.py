"""Digits put in order: "513>" → "135"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whet.records import Example, Message, Score
from whet.tasks.space import Problem, Space, mark, require_level

HIGHEST_LEVEL = 10
INSTRUCTION = "Sort these digits from smallest to largest: {question}. End with the sorted digits."


@dataclass(frozen=True, kw_only=True)
class Sorting:
    """Sorting of 3 (level 1) to 12 digits (level 10), smallest first; digits may repeat."""

    level: int = 1  # 1 … 10: level + 2 digits
    chat: bool = False  # pose it as an instruction, and grade the last digits of the answer

    def __post_init__(self) -> None:
        require_level(self.name, self.level, HIGHEST_LEVEL)
        self._space.require_both_sides(f"task {self.name} at level {self.level}")

    @property
    def name(self) -> str:
        return "sorting"

    @property
    def alphabet(self) -> str:
        """Every character of prompts and answers, sorted."""
        frame = INSTRUCTION.format(question="") if self.chat else ">"
        return "".join(sorted(set("0123456789" + frame)))

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(problem) for problem in self._space.training(count, seed)]

    def held_out(self, count: int) -> list[Example]:
        return [self._example(problem) for problem in self._space.held_out(count)]

    def score(self, example: Example, text: str) -> Score:
        return mark(self._given(text), example.answer)

    def correct(self, example: Example, text: str) -> bool:
        return self._given(text) == example.answer

    @property
    def _space(self) -> Space:
        return Space(sizes=(10 ** (self.level + 2),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        digits = str(index).zfill(self.level + 2)
        answer = "".join(sorted(digits))
        # All orders of the same digits share an answer, so they share a side.
        return Problem(question=digits, answer=answer, twin=answer)

    def _example(self, problem: Problem) -> Example:
        instruction = Message(role="user", content=INSTRUCTION.format(question=" ".join(problem.question)))
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=(instruction,) if self.chat else f"{problem.question}>",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )

    def _given(self, text: str) -> str:
        return last_digits(text) if self.chat else text.strip()


def last_digits(text: str) -> str:
    """The last run of digits, with the spaces and commas between them left out; "" if there is none."""
    runs = re.findall(r"[0-9](?:[ ,]*[0-9])*", text)
    return re.sub(r"[ ,]", "", runs[-1]) if runs else ""
