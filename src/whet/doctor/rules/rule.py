"""A rule of the doctor with what it reads, so that a run without that can be told what was not judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from whet.doctor.findings import Finding
from whet.doctor.history import FEW, History
from whet.doctor.settings import Kind

EVERY_KIND: tuple[Kind, ...] = ("online", "sft", "preference", "reward")
ONLINE: tuple[Kind, ...] = ("online",)
OFFLINE: tuple[Kind, ...] = ("sft", "preference", "reward")
SHORT, USUAL, LONG = FEW, 2 * FEW, 4 * FEW  # steps with a value that rules need
ROLLOUTS, ANSWERS = "rollouts", "answers"  # what rules read besides metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A function of a run so far, which gives a finding or is silent."""

    look: Callable[[History], Finding | None]
    names: tuple[str, ...]  # that its findings may have
    symptom: str  # in a line
    reads: tuple[str, ...]  # metrics without which it is silent; ROLLOUTS, ANSWERS
    steps: int = 1  # values that it needs of each of these metrics
    kinds: tuple[Kind, ...] = EVERY_KIND

    def __call__(self, history: History) -> Finding | None:
        return self.look(history)

    def missing(self, history: History) -> str:
        """What the run does not have yet that the rule reads; empty if nothing is missing."""
        for name in self.reads:
            if name in (ROLLOUTS, ANSWERS):
                if not (history.rollouts if name == ROLLOUTS else history.answers):
                    return f"no {name} are kept"
            elif not (count := len(history.series(name))):
                return f"{name} was not logged"
            elif count < self.steps:
                return f"{name} has {count} of {self.steps} values"
        return ""
