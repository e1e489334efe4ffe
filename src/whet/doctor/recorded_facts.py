"""What a run directory says of itself, besides metrics: how the run ended, accepted changes, files that were lost."""

from collections.abc import Iterable, Iterator

from whet.doctor.findings import Finding, Level
from whet.runs.catalogue import standing
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Inputs, sentence_of

NOT_FINITE = "not finite"  # in the error of a loss or gradient
LONGEST = 300  # characters of an error


def recorded_facts(run: RunDirectory, damage: Iterable[str] = ()) -> Iterator[Finding]:
    """Findings that no curve shows; `damage` is what could not be read of its rollouts."""
    now = standing(run)
    if now.status == "failed":
        error = now.error[:LONGEST] + "…" * (len(now.error) > LONGEST)
        yield Finding(
            rule="failed",
            level="critical",
            sentence=f"the run failed in step {now.step + 1}: {error}",
            causes=("learning-rate-too-high", "reward-scale") if NOT_FINITE in now.error else ("reward-fails",),
            step=now.step + 1,
        )
    for change in (run.inputs() or Inputs()).accepted:
        level: Level = "note" if change.get("setting") else "warning"
        yield Finding(rule="changed-inputs", level=level, sentence=sentence_of(change))
    for lost in (run.results() or {}).get("lost", ()):
        yield Finding(rule="lost-files", level="warning", sentence=f"lost: {lost}")
    for problem in damage:
        yield Finding(rule="lost-files", level="warning", sentence=f"damaged: {problem}")
