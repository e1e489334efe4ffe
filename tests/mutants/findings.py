"""What the warm run hands over to the cold one, as JSON: they are different processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.mutants.outcome import Outcome
from tests.mutants.sites import Mutant


@dataclass(kw_only=True, slots=True)
class Known:
    """What the run without a mutant has shown of one test."""

    name: str
    seconds: float
    passed: bool
    lines: dict[str, list[int]]  # path → lines of targets that it touches


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Outcomes, the mutants that are left, what is known of the tests, and the modules that they import."""

    outcomes: list[Outcome]
    left: list[Mutant]
    known: dict[str, Known]
    modules: list[str]

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Findings:
        """What was handed over."""
        found = json.loads(text)
        return cls(
            outcomes=[Outcome(**{**row, "mutant": _mutant(row["mutant"])}) for row in found["outcomes"]],
            left=[_mutant(row) for row in found["left"]],
            known={name: Known(**row) for name, row in found["known"].items()},
            modules=found["modules"],
        )


def _mutant(row: Mapping[str, Any]) -> Mutant:
    first, last = row["lines"]
    return Mutant(**{**row, "lines": (first, last)})
