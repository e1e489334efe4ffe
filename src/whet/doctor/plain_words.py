"""A diagnosis as lines of text and as JSON."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import yaml

from whet.doctor.findings import Cause, Change, Diagnosis, Evidence, Finding

SHOWN = 3  # causes that are told
NAMED = 4  # rules that a line names


def lines(diagnosis: Diagnosis, *, source: str = "") -> Iterator[str]:
    """Symptoms with their evidence, then the likely causes with what to change; `source`: the recipe of the run."""
    for finding in diagnosis.findings:
        yield f"{finding.level:>8}  {finding.sentence}{since(finding)}"
        yield from (f"{'':10}{told(seen)}" for seen in finding.evidence)
    yield from _not_judged(diagnosis)
    yield ""
    if not diagnosis.alarms and diagnosis.is_empty:
        yield "nothing to judge yet: no step is logged"
        return
    if not diagnosis.alarms:
        hardly = bool(diagnosis.unjudged) and {one.rule for one in diagnosis.findings} <= {"held-out"}
        known = "nothing that the doctor knows is wrong"
        yield "no alarm: too little is recorded to judge by" if hardly else f"no alarm: {known}"
        return
    if not diagnosis.causes:
        yield "no cause is known for this: read the lines above"
        return
    yield "likely causes, the likeliest first:"
    for place, cause in enumerate(diagnosis.causes[:SHOWN], start=1):
        yield f"  {place}. {cause.name}: {cause.sentence}"
        yield from (f"     try {written(change)}  ({change.why})" for change in cause.changes)
    first = diagnosis.causes[0]
    if source and first.changes:
        yield ""
        yield f"again with that change: whet train {source} {' '.join(written(one) for one in first.changes)}"


def _not_judged(diagnosis: Diagnosis) -> Iterator[str]:
    """What could not be judged: a line for each reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for one in diagnosis.unjudged:
        by_reason[one.why].append(one.rule)
    for why, rules in by_reason.items():
        more = f" and {len(rules) - NAMED} more" if len(rules) > NAMED else ""
        yield f"{'–':>8}  not judged, because {why}: {', '.join(rules[:NAMED])}{more}"


def since(finding: Finding) -> str:
    """When a finding held, in brackets; empty if that is not known."""
    if finding.step is None:
        return ""
    return f" (since step {finding.step})" if finding.until is None else f" (steps {finding.step} to {finding.until})"


def told(evidence: Evidence) -> str:
    """Evidence with the place where it is found."""
    if evidence.rollout is not None:
        step, row = evidence.rollout
        return f"{evidence.text} (row {row} of the rollouts of step {step})"
    return evidence.text if evidence.step is None else f"{evidence.text} in step {evidence.step}"


def written(change: Change) -> str:
    """As it is written on the command line."""
    value = yaml.safe_dump(change.value, default_flow_style=True).strip().removesuffix("...").strip()
    if isinstance(change.value, float):
        value = f"{change.value:g}"
    quoted = f"'{value}'" if any(letter in value for letter in " []{}*") else value
    return f"{change.key}={quoted}"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "level": diagnosis.level,
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "causes": [_cause(cause) for cause in diagnosis.causes],
        "unjudged": [asdict(one) for one in diagnosis.unjudged],
        "is_empty": diagnosis.is_empty,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    changes = [{**asdict(change), "argument": written(change)} for change in cause.changes]
    return {"name": cause.name, "sentence": cause.sentence, "votes": cause.votes, "changes": changes}
