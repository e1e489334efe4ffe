"""Digits put in order: "513>" → "135"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whet.tasks.procedural import Procedural
from whet.tasks.space import Problem, Space


@dataclass(frozen=True, kw_only=True)
class Sorting(Procedural):
    """Sorting of 3 (level 1) to 12 digits (level 10), smallest first; digits may repeat."""

    name = "sorting"
    highest_level = 10
    instruction = "Sort these digits from smallest to largest: {question}. End with the sorted digits."

    @property
    def _characters(self) -> str:
        return "0123456789"

    @property
    def _space(self) -> Space:
        return Space(sizes=(10 ** (self.level + 2),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        digits = str(index).zfill(self.level + 2)
        answer = "".join(sorted(digits))
        # All orders of the same digits share an answer, so they share a side.
        return Problem(question=digits, answer=answer, twin=answer)

    def _spelled(self, question: str) -> str:
        return " ".join(question)

    def _last(self, text: str) -> str:
        return last_digits(text)


def last_digits(text: str) -> str:
    """The last run of digits, with the spaces and commas between them left out; "" if there is none."""
    runs = re.findall(r"[0-9](?:[ ,]*[0-9])*", text)
    return re.sub(r"[ ,]", "", runs[-1]) if runs else ""
