"""Words written backwards: "cat>" → "tac"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import ascii_lowercase

from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.space import Problem, Space, mark, require_level

HIGHEST_LEVEL = 10
INSTRUCTION = 'Write the letters of "{question}" in reverse order. End with the reversed word.'


@dataclass(frozen=True, kw_only=True)
class Reverse:
    """Reversal of a made-up word of 3 (level 1) to 12 letters (level 10)."""

    level: int = 1  # 1 … 10: words of level + 2 letters
    letters: int = 26  # 2 … 26: words use this many letters, from a on
    chat: bool = False  # pose it as an instruction, and grade the last word of the answer

    def __post_init__(self) -> None:
        require_level(self.name, self.level, HIGHEST_LEVEL)
        if not 2 <= self.letters <= len(ascii_lowercase):
            raise UserError(f"task {self.name}: letters is {self.letters}, must be between 2 and 26")
        self._space.require_both_sides(f"task {self.name} at level {self.level} with {self.letters} letters")

    @property
    def name(self) -> str:
        return "reverse"

    @property
    def alphabet(self) -> str:
        """Every character of prompts and answers, sorted."""
        frame = INSTRUCTION.format(question="") if self.chat else ">"
        return "".join(sorted(set(ascii_lowercase[: self.letters] + frame)))

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
        return Space(sizes=(self.letters ** (self.level + 2),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        word = ""
        for _ in range(self.level + 2):
            index, letter = divmod(index, self.letters)
            word += ascii_lowercase[letter]
        backwards = word[::-1]
        return Problem(question=word, answer=backwards, twin=min(word, backwards))

    def _example(self, problem: Problem) -> Example:
        instruction = Message(role="user", content=INSTRUCTION.format(question=problem.question))
        return Example(
            id=f"{self.name}:{problem.question}",
            prompt=(instruction,) if self.chat else f"{problem.question}>",
            answer=problem.answer,
            columns={"question": problem.question, "level": self.level},
            twin=problem.twin,
        )

    def _given(self, text: str) -> str:
        return last_word(text) if self.chat else text.strip()


def last_word(text: str) -> str:
    """The last run of letters that the text holds, in lower case; "" if there is none."""
    words = re.findall(r"[a-z]+", text.lower())
    return str(words[-1]) if words else ""
