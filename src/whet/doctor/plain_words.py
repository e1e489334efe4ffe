"""A diagnosis as lines of text and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import yaml

from whet.doctor.findings import Cause, Change, Diagnosis, Finding

SHOWN = 3  # causes that are told


def lines(diagnosis: Diagnosis, *, source: str = "") -> Iterator[str]:
    """Symptoms with their evidence, then the likely causes with what to change."""
    for finding in diagnosis.findings:
        yield _headline(finding)
        for seen in finding.evidence:
            yield f"      {_evidence(seen.text, seen.metric, seen.step, seen.rollout)}"
    if not diagnosis.causes:
        yield "no alarm: nothing that the doctor knows is wrong"
        return
    yield ""
    yield "likely causes, the likeliest first:"
    for place, cause in enumerate(diagnosis.causes[:SHOWN], start=1):
        yield f"  {place}. {cause.name}: {cause.sentence}"
        yield from (f"     try {written(change)}  ({change.why})" for change in cause.changes)
    first = diagnosis.causes[0]
    if source and first.changes:
        yield ""
        yield f"again with the first of them: whet train {source} {' '.join(written(one) for one in first.changes)}"


def _headline(finding: Finding) -> str:
    since = ""
    if finding.step is not None:
        since = f" (since step {finding.step})"
        if finding.until is not None:
            since = f" (steps {finding.step} to {finding.until})"
    return f"{finding.level:>8}  {finding.sentence}{since}"


def _evidence(text: str, metric: str, step: int | None, rollout: tuple[int, int] | None) -> str:
    where = "" if step is None else f" in step {step}"
    if rollout is not None:
        return f"{text}: rollout {rollout[1]} of step {rollout[0]}"
    return f"{text}{where}" if metric or where else text


def written(change: Change) -> str:
    """As it is written on the command line."""
    value = yaml.safe_dump(change.value, default_flow_style=True).strip().removesuffix("...").strip()
    if isinstance(change.value, float):
        value = f"{change.value:g}"
    quoted = f"'{value}'" if any(letter in value for letter in " []{}*") else value
    return f"{change.key}={quoted}"


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "causes": [_cause(cause) for cause in diagnosis.causes],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    changes = [{**asdict(change), "argument": written(change)} for change in cause.changes]
    return {"name": cause.name, "sentence": cause.sentence, "votes": cause.votes, "changes": changes}
