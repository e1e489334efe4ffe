"""Results as a file: counts of each target, and its survivors, with reasons where they are accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.mutants.outcome import Outcome
from tests.mutants.sites import Mutant, mutants
from tests.mutants.targets import TESTS, source

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
ACCEPTED = HERE / "accepted.yaml"
VERDICTS = ("killed", "timeout", "crashed", "survived", "not covered")
LEAST_SHARE = 0.95  # of all bugs, those with a reason among them
Key = tuple[str, str, str, str]


def accepted(path: Path = ACCEPTED) -> dict[Key, str]:
    """(file, function, line, changed line) → why no test can be asked to notice."""
    rows: Mapping[str, Any] = yaml.safe_load(path.read_text("utf-8")) or {}
    return {(file, row["in"], row["line"], row["as"]): row["why"] for file, entries in rows.items() for row in entries}


def unmatched(known: Mapping[Key, str]) -> list[Key]:
    """Accepted survivors that are no mutants any more."""
    there = {mutant.key for file in {key[0] for key in known} & TESTS.keys() for mutant in mutants(file, source(file))}
    return [key for key in known if key not in there]


def counted(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """By file."""
    files: dict[str, dict[str, Any]] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.mutant.file, one.mutant.number)):
        counts = files.setdefault(outcome.mutant.file, {**dict.fromkeys(VERDICTS, 0), "survivors": []})
        counts[outcome.verdict] += 1
        if outcome.is_alive:
            counts["survivors"].append(_row(outcome.mutant))
    return files


def complaints(files: Mapping[str, Any], everything: Mapping[str, Any], known: Mapping[Key, str]) -> list[str]:
    """What must not be: survivors of this run that nobody accepted, and too few bugs noticed in all results."""
    found = [
        f"src/whet/{file}:{row['at']} no test notices, and no reason is listed: {row['line']} → {row['as']}"
        for file, counts in files.items()
        for row in counts["survivors"]
        if key_of(file, row) not in known
    ]
    count = sum(counts[verdict] for counts in everything.values() for verdict in VERDICTS)
    noticed = count - sum(len(counts["survivors"]) for counts in everything.values())
    if noticed < LEAST_SHARE * count:
        found.append(
            f"only {noticed} of {count} bugs are noticed, {noticed / count:.1%}: at least {LEAST_SHARE:.0%} must be"
        )
    return found


def write(path: Path, files: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Puts these files into the results that are there; those of other files stay. Gives all of them."""
    before = json.loads(path.read_text("utf-8"))["files"] if path.exists() else {}
    merged = {file: entry for file, entry in {**before, **files}.items() if file in TESTS}
    ordered = {file: merged[file] for file in TESTS if file in merged}
    path.write_text(json.dumps({**about, "files": ordered}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return ordered


def shown(mutant: Mutant) -> str:
    """A diff of one line."""
    return (
        f"src/whet/{mutant.file}:{mutant.line} {mutant.owner or 'at the import'} ({mutant.operator})\n"
        f"  - {mutant.before}\n  + {mutant.after}"
    )


def key_of(file: str, row: Mapping[str, Any]) -> Key:
    """What an entry of the results is accepted by."""
    return file, row["in"], row["line"], row["as"]


def _row(mutant: Mutant) -> dict[str, Any]:
    return {
        "at": mutant.line,
        "in": mutant.owner,
        "operator": mutant.operator,
        "line": mutant.before,
        "as": mutant.after,
    }
