"""What is kept of a run: its metrics, and of a few steps the rollouts, as the doctor reads them; one line of JSON each.

A file of histories is gzip members one behind the other, so that runs are appended as they finish and a file whose
writer was killed is readable up to there; the committed one is xz of the same lines. Thresholds are fitted and verdicts
given from it without training again.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.doctor.examine import read_history
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import History
from whet.doctor.recorded_facts import recorded_facts
from whet.doctor.settings import Settings, kind_of
from whet.runs.directory import RunDirectory

KEPT = ("id", "prompt", "answer", "text", "finish", "correct", "reward", "parts", "tokens", "mask", "sample")
DIGITS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One run of the study, as it was kept."""

    case: str
    seed: int
    changes: tuple[str, ...]  # keys that the doctor advised, of a run that tries them
    ended: str  # why it ended before its last step; empty if it did not
    seconds: float
    history: History
    facts: tuple[Finding, ...]  # what the run directory says of itself

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        return self.case, self.seed, self.changes


def kept(run: Path) -> dict[str, Any]:
    """The parts of a run directory that the doctor reads."""
    directory = RunDirectory.open(run, is_writer=False)
    history = read_history(directory)
    return {
        "facts": [asdict(fact) for fact in recorded_facts(directory, history.settings)],
        "config": history.settings.config,
        "parameters": history.settings.parameters,
        "steps": history.steps,
        "rows": [_short(row) for row in history.rows],
        "rollouts": {step: [_shown(row) for row in rows] for step, rows in history.rollouts.items()},
        "answers": {step: [_shown(row) for row in rows] for step, rows in history.answers.items()},
    }


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _short(one) for key, one in value.items()}
    return value


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _short(row[key]) for key in KEPT if key in row}
    if "mask" in found:
        found["mask"] = [int(one) for one in found["mask"]]
    return found


def line(entry: Mapping[str, Any]) -> bytes:
    """A gzip member of one line."""
    return gzip.compress((json.dumps(entry, separators=(",", ":")) + "\n").encode("utf-8"), mtime=0)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of histories, up to one that was cut off."""
    if not path.is_file():
        return
    unpacked = lzma.open if path.suffix == ".xz" else gzip.open
    with unpacked(path, "rt", encoding="utf-8") as lines:
        try:
            for text in lines:
                yield json.loads(text)
        except (EOFError, gzip.BadGzipFile, lzma.LZMAError, json.JSONDecodeError):
            return


def trained(entry: Mapping[str, Any]) -> Trained:
    rows = entry["rows"]
    settings = Settings(
        config=entry["config"],
        kind=kind_of({name for row in rows for name in row}),
        parameters=entry["parameters"],
    )
    return Trained(
        case=entry["case"],
        seed=entry["seed"],
        changes=tuple(entry["changes"]),
        ended=entry["ended"],
        seconds=entry["seconds"],
        history=History(
            rows=rows,
            settings=settings,
            steps=entry["steps"],
            rollouts={int(step): some for step, some in entry["rollouts"].items()},
            answers={int(step): some for step, some in entry["answers"].items()},
        ),
        facts=tuple(map(_fact, entry["facts"])),
    )


def _fact(stored: Mapping[str, Any]) -> Finding:
    evidence = tuple(Evidence(**one) for one in stored["evidence"])
    return Finding(**{**stored, "causes": tuple(stored["causes"]), "evidence": evidence})


def read(paths: Sequence[Path]) -> list[Trained]:
    """The runs of several files; of a run that stands in two the last one."""
    found = {one.key: one for path in paths for one in map(trained, entries(path))}
    return [found[key] for key in sorted(found)]
