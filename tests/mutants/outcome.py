"""How a mutant fared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.mutants.children import Ended
from tests.mutants.sites import Mutant

Verdict = Literal["killed", "timeout", "crashed", "survived", "not covered"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A mutant and what became of it."""

    mutant: Mutant
    verdict: Verdict
    killer: str = ""  # the test that failed
    seconds: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether no test has noticed."""
        return self.verdict in {"survived", "not covered"}


Say = Callable[[Outcome], None]


def outcome_of(ended: Ended[Any], mutant: Mutant | None, killer: str) -> Outcome:
    """From the end of a child: 0 is a survivor, 1 a test that failed, no code that the time was up."""
    nothing = Mutant(file="", number=-1, line=0, owner="", operator="", before="", after="", lines=(0, 0))
    verdicts: dict[int | None, Verdict] = {0: "survived", 1: "killed", None: "timeout"}
    return Outcome(
        mutant=mutant or nothing, verdict=verdicts.get(ended.code, "crashed"), killer=killer, seconds=ended.seconds
    )
