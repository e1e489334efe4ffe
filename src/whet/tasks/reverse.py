"""Words written backwards: "cat>" → "tac"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import ascii_lowercase

from whet.errors import UserError
from whet.tasks.procedural import Procedural
from whet.tasks.space import Problem, Space


@dataclass(frozen=True, kw_only=True)
class Reverse(Procedural):
    """Reversal of a made-up word of 3 (level 1) to 12 letters (level 10)."""

    letters: int = 26  # 2 … 26: words use this many letters, from a on

    name = "reverse"
    highest_level = 10
    instruction = 'Write the letters of "{question}" in reverse order. End with the reversed word.'

    def __post_init__(self) -> None:
        if not 2 <= self.letters <= len(ascii_lowercase):
            raise UserError(f"task {self.name}: letters is {self.letters}, must be between 2 and 26")
        super().__post_init__()

    @property
    def _variant(self) -> str:
        return f" with {self.letters} letters"

    @property
    def _characters(self) -> str:
        return ascii_lowercase[: self.letters]

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

    def _last(self, text: str) -> str:
        return last_word(text)


def last_word(text: str) -> str:
    """The last run of letters that the text holds, in lower case; "" if there is none."""
    words = re.findall(r"[a-z]+", text.lower())
    return str(words[-1]) if words else ""
