"""Sums, differences and products of whole numbers: "12+7=" → "19"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from whet.tasks.procedural import Procedural
from whet.tasks.space import Problem, Space


class Kind(NamedTuple):
    """One operation, and the most digits that its operands have."""

    operation: str
    left_digits: int
    right_digits: int


LEVELS: dict[int, tuple[Kind, ...]] = {
    1: (Kind("+", 1, 1),),
    2: (Kind("+", 2, 2),),
    3: (Kind("+", 2, 2), Kind("-", 2, 2)),
    4: (Kind("+", 3, 3), Kind("-", 3, 3), Kind("*", 2, 1)),
    5: (Kind("+", 4, 4), Kind("-", 4, 4), Kind("*", 3, 2)),
}
# A minus belongs to the number unless a digit stands before it: "7-12=-5" holds 7, 12 and -5.
NUMBER = re.compile(r"(?:(?<!\d)-)?\d[\d,]*(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Procedural):
    """Arithmetic with one (level 1) to four digits (level 5): + from level 1, - from level 3, * from level 4."""

    name = "arithmetic"
    highest_level = max(LEVELS)
    instruction = "What is {question}? Think if you must, and end with the number."
    sign = "="

    @property
    def _characters(self) -> str:
        return "0123456789" + "".join(kind.operation for kind in LEVELS[self.level])

    @property
    def _space(self) -> Space:
        sizes = tuple(10 ** (kind.left_digits + kind.right_digits) for kind in LEVELS[self.level])
        return Space(sizes=sizes, problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        operation, _, right_digits = LEVELS[self.level][kind]
        left, right = divmod(index, 10**right_digits)
        results = {"+": left + right, "-": left - right, "*": left * right}
        small, large = sorted((left, right))
        return Problem(
            question=f"{left}{operation}{right}", answer=str(results[operation]), twin=f"{small}{operation}{large}"
        )

    def _last(self, text: str) -> str:
        return last_number(text)


def last_number(text: str) -> str:
    """The last number that the text mentions, without thousands separators and empty decimals; "" if there is none."""
    numbers = NUMBER.findall(text.replace("−", "-"))
    if not numbers:
        return ""
    whole, _, decimals = numbers[-1].replace(",", "").partition(".")
    return f"{whole}.{decimals}" if decimals.strip("0") else whole
