"""What the doctor says of kept runs: whether and when it warned, and where it ranks what was really wrong."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from studies.doctor.cases import Fault, Part
from studies.doctor.histories import Trained
from studies.doctor.training import CASES
from whet.doctor.diagnosis import findings_of, ranked
from whet.doctor.findings import Finding
from whet.doctor.history import History
from whet.doctor.watch import Alarms, stride
from whet.evaluate.statistics import wilson

PARTS: tuple[Part, ...] = ("fit", "develop", "measure")
RESTORED = 0.9  # of the healthy result: then a run counts as repaired

Look = tuple[int, Sequence[Finding]]  # a step, and what the rules say of the run up to it


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The doctor's word on one run, and whether it is true."""

    case: str
    seed: int
    part: Part
    faulty: bool
    alarms: tuple[str, ...]  # rules
    causes: tuple[str, ...]  # the likeliest first
    rank: int | None  # of the true cause, from 1; None if it is not named
    told: int | None  # the step at which a run that is watched is first warned
    share: float | None  # of the steps of the run

    @property
    def is_warned(self) -> bool:
        return bool(self.alarms)


def looks(history: History) -> list[Look]:
    """A run as it is watched: what the rules find at every look."""
    every = stride(history.steps or history.done)
    steps = sorted({int(row["step"]) for row in history.rows})
    return [(step, findings_of(history.until(step))) for step in steps if step % every == 0 or step == history.done]


def verdict(one: Trained, seen: Sequence[Look] | None = None) -> Verdict:
    """Of a run; of these looks at it, if they are known."""
    case = CASES[one.case]
    seen = looks(one.history) if seen is None else seen
    findings, told = lasting(seen)
    findings = [*one.facts, *findings]
    if told is None and any(fact.is_alarm for fact in one.facts):
        told = one.history.done
    causes = tuple(cause.name for cause in ranked(findings, one.history.settings))
    right = case.causes if isinstance(case, Fault) else ()
    steps = one.history.steps or one.history.done
    return Verdict(
        case=one.case,
        seed=one.seed,
        part=case.part,
        faulty=isinstance(case, Fault),
        alarms=tuple(dict.fromkeys(finding.rule for finding in findings if finding.is_alarm)),
        causes=causes,
        rank=next((place for place, name in enumerate(causes, start=1) if name in right), None),
        told=told,
        share=None if told is None or not steps else told / steps,
    )


def lasting(seen: Sequence[Look]) -> tuple[list[Finding], int | None]:
    """The findings at the end with the alarms that have passed, and the first step at which one was told."""
    alarms, told = Alarms(), None
    for step, findings in seen:
        if alarms.look(step, findings) and told is None:
            told = step
    last = list(seen[-1][1]) if seen else []
    current = {finding.rule for finding in last if finding.is_alarm}
    if told is None and current:
        told = seen[-1][0]
    return [*last, *(one for rule, one in alarms.lasted.items() if rule not in current)], told


def result(one: Trained) -> tuple[float, bool] | None:
    """The last held-out result of a run, and whether more is better."""
    measure, ends = one.history.measure, one.history.ends()
    return None if measure is None or ends is None else (float(ends[1][measure.metric]), measure.is_higher_better)


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """What became of the doctor's advice."""

    case: str
    seed: int
    part: Part
    changes: tuple[str, ...]
    faulty: float | None  # held-out results
    repaired: float | None
    healthy: float
    lost: float | None  # the faulty result as a share of the healthy one
    restored: float | None  # the repaired one


def repairs(runs: Sequence[Trained], advice: Mapping[tuple[str, int], tuple[str, ...]]) -> list[Repair]:
    """Of every faulty run that a key can repair: the run with the advised key beside the healthy one of the same seed.

    Advice that was not tried has no result, and counts as no repair where no key was advised.
    """
    known = {one.key: one for one in runs}
    found = []
    for one in runs:
        case = CASES[one.case]
        if not isinstance(case, Fault) or not case.repair or one.changes:
            continue
        base = known.get((case.base, one.seed, ()))
        healthy = None if base is None else result(base)
        if healthy is None:
            continue
        changes = advice[one.case, one.seed]
        tried = known.get((one.case, one.seed, changes)) if changes else None
        faulty, repaired = result(one), None if tried is None else result(tried)
        restored = None if repaired is None else _share(repaired[0], healthy[0], is_higher_better=healthy[1])
        found.append(
            Repair(
                case=one.case,
                seed=one.seed,
                part=case.part,
                changes=changes,
                faulty=None if faulty is None else faulty[0],
                repaired=None if repaired is None else repaired[0],
                healthy=healthy[0],
                lost=None if faulty is None else _share(faulty[0], healthy[0], is_higher_better=healthy[1]),
                restored=0.0 if not changes else restored,
            )
        )
    return found


def _share(value: float, healthy: float, *, is_higher_better: bool) -> float:
    first, second = (value, healthy) if is_higher_better else (healthy, value)
    return first / second if second else 1.0


def summary(verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """The numbers of a part: shares with their 95 % intervals."""
    every = list(verdicts)
    faulty, healthy = [one for one in every if one.faulty], [one for one in every if not one.faulty]
    shares = [one.share for one in faulty if one.share is not None]
    return {
        "faults": len({one.case for one in faulty}),
        "faulty runs": len(faulty),
        "detected": share([one.is_warned for one in faulty]),
        "first": share([one.rank == 1 for one in faulty]),
        "first two": share([one.rank is not None and one.rank <= 2 for one in faulty]),
        "median share": statistics.median(shares) if shares else None,
        "healthy runs": len(healthy),
        "warned": share([one.is_warned for one in healthy]),
    }


def repair_summary(found: Iterable[Repair]) -> dict[str, Any]:
    """Of the runs that the fault cost more than what counts as repaired, and whose advice was tried."""
    hurt = [one for one in found if one.lost is None or one.lost < RESTORED]
    tried = [one.restored for one in hurt if one.restored is not None]
    return {"hurt": len(hurt), "tried": len(tried), "restored": share([one >= RESTORED for one in tried])}


def share(outcomes: Sequence[bool]) -> dict[str, float] | None:
    """With its 95 % interval (Wilson)."""
    if not outcomes:
        return None
    interval = wilson(sum(outcomes), len(outcomes))
    return {"value": sum(outcomes) / len(outcomes), "low": interval.low, "high": interval.high, "count": sum(outcomes)}


def as_json(one: Verdict | Repair) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(one).items()}
