"""What a run directory says of itself, besides metrics: how the run ended, accepted changes, files that were lost."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from whet.doctor.findings import Evidence, Finding, Level
from whet.errors import RunFailed
from whet.runs.catalogue import newest_failure, standing
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Inputs, sentence_of

Content = TypeVar("Content")
NOT_FINITE = "not finite"  # in the error of a loss or gradient
LONGEST = 300  # characters of an error


def recorded_facts(run: RunDirectory, damage: Iterable[str] = ()) -> Iterator[Finding]:
    """Findings that no curve shows; `damage` is what could not be read of its rollouts."""
    now = standing(run)
    if now.status == "failed":
        files = [failure] if (failure := newest_failure(run.path)) is not None else []
        error = now.error[:LONGEST] + "…" * (len(now.error) > LONGEST)
        yield Finding(
            rule="failed",
            level="critical",
            sentence=f"the run failed in step {now.step + 1}: {error}",
            causes=("learning-rate-too-high", "reward-scale") if NOT_FINITE in now.error else ("reward-fails",),
            evidence=tuple(Evidence(text=f"details are in failures/{file.name} of the run") for file in files),
            step=now.step + 1,
        )
    problems = list(damage)
    for change in _read(run.inputs, Inputs(), problems).accepted:
        level: Level = "note" if change.get("setting") else "warning"
        yield Finding(rule="changed-inputs", level=level, sentence=sentence_of(change))
    lost = _read(run.results, dict[str, Any](), problems).get("lost")
    for name in lost if isinstance(lost, list) else ():
        yield Finding(rule="lost-files", level="warning", sentence=f"lost: {name}")
    for problem in problems:
        yield Finding(rule="lost-files", level="warning", sentence=f"damaged: {problem}")


def _read(read: Callable[[], Content | None], empty: Content, problems: list[str]) -> Content:
    """What a file holds; nothing if it is not there, or damaged, which is told."""
    try:
        return read() or empty
    except RunFailed as error:
        problems.append(str(error))
        return empty
