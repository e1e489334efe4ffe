"""What the bench found: one finding per check, and the report with its verdict."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "note"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check; a failed attack also has the completion that shows it."""

    check: str
    outcome: Outcome
    sentence: str
    fix: str = ""  # what to change, if it failed
    example: str = ""  # id
    completion: str = ""
    score: float | None = None  # of the completion
    gold: float | None = None  # of the right answer to the same example


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything found about one reward."""

    subject: str
    findings: tuple[Finding, ...]
    examples: int  # attacked
    completions: int  # graded
    per_second: float  # completions, for information
    gold_mean: float | None  # reward of the right answers; None if there are none
    wrong_most: float | None  # the highest reward of a wrong completion
    wrong_most_check: str  # and the attack that earned it

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome == "failed"]

    @property
    def is_passed(self) -> bool:
        return not self.failed

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        if self.failed:
            names = ", ".join(dict.fromkeys(finding.check for finding in self.failed))
            return f"failed ({names}): do not train with this reward before it is repaired"
        if self.gold_mean is None:
            return "passed what can be checked without right answers: nothing was compared with them"
        if self.wrong_most is None:
            return f"passed: right answers score {self.gold_mean:.3g}"
        return (
            f"passed: right answers score {self.gold_mean:.3g} on average, the best wrong completion "
            f"{self.wrong_most:.3g} ({self.wrong_most_check})"
        )


def passed(check: str, sentence: str) -> Finding:
    return Finding(check=check, outcome="passed", sentence=sentence)


def note(check: str, sentence: str) -> Finding:
    return Finding(check=check, outcome="note", sentence=sentence)


def failed(check: str, sentence: str, fix: str) -> Finding:
    return Finding(check=check, outcome="failed", sentence=sentence, fix=fix)
