"""Answers about a broken run: the metric that shows it, the key at fault, a value that repairs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from whet.learn.exercise import Functions, Remark


@dataclass(frozen=True)
class Named:
    """A check: the answer `name` is one of the right words."""

    name: str
    right: Collection[str]
    wrong: Mapping[str, str]  # answers that are near, and what speaks against each
    otherwise: str  # what is said of any other

    def __call__(self, functions: Functions) -> Remark | None:
        answer = functions.get(self.name)
        if not isinstance(answer, str) or not answer.strip():
            return _unwritten(self.name, "a text in quotes")
        said = answer.strip()
        if said in self.right:
            return None
        return Remark(f"{self.name} is not {said!r}: {self.wrong.get(said, self.otherwise)}")


@dataclass(frozen=True)
class Repaired:
    """A check: `value` lies where the run learns."""

    low: float
    high: float
    too_low: str
    too_high: str
    whole: bool = field(default=False, kw_only=True)

    def __call__(self, functions: Functions) -> Remark | None:
        answer = functions.get("value")
        if isinstance(answer, bool) or not isinstance(answer, int | float):
            return _unwritten("value", "a number")
        if self.whole and answer != int(answer):
            return Remark(f"value is {answer:g}: the key takes whole numbers")
        if self.low <= answer <= self.high:
            return None
        return Remark(f"value is {answer:g}: {self.too_low if answer < self.low else self.too_high}")


def _unwritten(name: str, kind: str) -> Remark:
    return Remark(f"`{name}` is not written yet: run the recipe, look at what it says of itself, then give {kind}")
