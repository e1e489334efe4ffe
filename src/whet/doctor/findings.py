"""What the doctor says: findings with their evidence, ranked causes, and the keys to change."""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "critical"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "note", "ok")  # the most serious first
ALARMS = ("critical", "warning")
ENDED = "an alarm of the doctor"  # how the reason begins that a run was ended for


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A number or a rollout that shows a symptom."""

    text: str  # in words
    metric: str = ""
    step: int | None = None
    rollout: tuple[int, int] | None = None  # step, and index of the row in the rollouts of that step


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One rule's answer."""

    rule: str
    level: Level
    sentence: str
    causes: tuple[str, ...] = ()  # names in `CAUSES`, the likeliest first
    evidence: tuple[Evidence, ...] = ()
    step: int | None = None  # the first step at which it was an alarm
    until: int | None = None  # the last one, if it has passed

    @property
    def is_alarm(self) -> bool:
        return self.level in ALARMS


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A key of the recipe and the value to give it."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A likely cause of the alarms of a run."""

    name: str
    sentence: str  # what it is and how it makes the symptoms
    votes: float  # of the findings, and of unusual settings
    changes: tuple[Change, ...]  # to try, the first one first


@dataclass(frozen=True, kw_only=True, slots=True)
class Unjudged:
    """A rule that could not look at the run."""

    rule: str
    symptom: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """All findings on a run, the most serious first, and the causes that explain its alarms, the likeliest first."""

    findings: tuple[Finding, ...]
    causes: tuple[Cause, ...]
    unjudged: tuple[Unjudged, ...] = ()  # of the rules for this kind of run
    is_empty: bool = False  # no step is logged yet, so there is nothing to judge

    @property
    def alarms(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_alarm)

    @property
    def level(self) -> Level:
        """The level of the most serious finding."""
        return min((finding.level for finding in self.findings), key=LEVELS.index, default="ok")


def ended_by(reason: str) -> str | None:
    """The rule of the alarm that ended a run, as its results give the reason; None of any other reason."""
    if not reason.startswith(ENDED):
        return None
    return reason.removeprefix(ENDED).removeprefix(":").partition(":")[0].strip()
