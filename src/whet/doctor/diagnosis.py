"""From findings to ranked causes: every alarm votes for its causes, and settings far from usual count more."""

from collections.abc import Sequence

from whet.doctor.causes import CAUSES
from whet.doctor.findings import LEVELS, Cause, Diagnosis, Finding, Unjudged
from whet.doctor.history import History
from whet.doctor.rules.all_rules import RULES
from whet.doctor.settings import Settings

WEIGHT = {"critical": 2.0, "warning": 1.0, "note": 0.1, "ok": 0.0}
PASSED = 0.5  # the votes of an alarm that no longer holds, as a share
NEXT = 0.6  # the vote for a cause, as a share of that for the one named before it


def diagnose(history: History) -> Diagnosis:
    """What the rules say of a run as it is now."""
    findings = findings_of(history)
    return Diagnosis(
        findings=findings,
        causes=ranked(findings, history.settings),
        unjudged=unjudged(history),
        is_empty=history.done == 0,
    )


def unjudged(history: History) -> tuple[Unjudged, ...]:
    """The rules for such a run that lack what they read; none before its first step, when its kind is not known."""
    if history.done == 0:
        return ()
    missing = {rule: rule.missing(history) for rule in RULES if history.settings.kind in rule.kinds}
    return tuple(Unjudged(rule=rule.names[0], symptom=rule.symptom, why=why) for rule, why in missing.items() if why)


def findings_of(history: History) -> tuple[Finding, ...]:
    """All findings, the most serious first."""
    found = [finding for rule in RULES if (finding := rule(history)) is not None]
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


def ranked(findings: Sequence[Finding], settings: Settings) -> tuple[Cause, ...]:
    """The causes of the alarms by votes; notes count too once there is an alarm."""
    if not any(finding.is_alarm for finding in findings):
        return ()
    votes: dict[str, float] = {}
    for finding in findings:
        weight = WEIGHT[finding.level] * (1.0 if finding.until is None else PASSED)
        for place, name in enumerate(finding.causes):
            votes[name] = votes.get(name, 0.0) + weight * NEXT**place
    weighed = {name: count * CAUSES[name].suspicion(settings) for name, count in votes.items()}
    order = sorted((name for name, count in weighed.items() if count > 0), key=lambda name: -weighed[name])
    return tuple(
        Cause(
            name=name,
            sentence=CAUSES[name].sentence,
            votes=weighed[name],
            changes=tuple(one for one in CAUSES[name].changes(settings) if settings.takes(one.key, one.value)),
        )
        for name in order
    )
