"""What a run directory says of itself, besides metrics: how the run ended, accepted changes, files that were lost."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from whet.doctor.failures import causes_of, last_frame
from whet.doctor.findings import Evidence, Finding, Level
from whet.doctor.settings import Settings
from whet.errors import RunFailed
from whet.runs.catalogue import failure_of, newest_failure, standing
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Inputs, sentence_of

Content = TypeVar("Content")
LONGEST = 300  # characters of an error


def recorded_facts(run: RunDirectory, settings: Settings, damage: Iterable[str] = ()) -> Iterator[Finding]:
    """Findings that no curve shows; `damage` is what could not be read of its rollouts."""
    now = standing(run)
    if now.status == "failed":
        file, failure = newest_failure(run.path), failure_of(run.path)
        kind = "" if file is None else file.name.partition("-")[0]
        frame, where = last_frame(failure), f"step {now.step + 1}"
        if str(failure.get("where")).startswith("evaluation"):
            where = f"the {str(failure['where'])[:LONGEST]}"
        seen = [f"it arose at {frame}"] if frame and frame not in now.error else []
        seen += [] if file is None else [f"details are in failures/{file.name} of the run"]
        error = now.error[:LONGEST] + "…" * (len(now.error) > LONGEST)
        yield Finding(
            rule="failed",
            level="critical",
            sentence=f"the run failed in {where}: {error}",
            causes=causes_of(kind, failure, settings),
            evidence=tuple(Evidence(text=text) for text in seen),
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
