"""Fits the thresholds of the doctor to the faults and healthy runs of the half `fit`; the other half is not read.

    python -m studies.doctor.fit histories.jsonl.gz --write

A plain search: each threshold in turn is multiplied by each of `FACTORS`, the value with the best score is kept, until
a round changes nothing. A threshold moves only if the score rises, so those that no run tests stay as they are. The
score is the mean over faults of what is detected, ranked first and among the first two, and of how early, less the
share of healthy runs with a warning many times over. `--write` puts the values into whet/doctor/thresholds.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from studies.doctor import histories
from studies.doctor.histories import Trained
from studies.doctor.judge import Look, Verdict, looks, verdict
from studies.doctor.training import CASES
from whet.doctor import thresholds
from whet.doctor.findings import Finding
from whet.doctor.rules import completions, evaluation, exploration, preferences, rewards, sampler, updates
from whet.doctor.rules.all_rules import RULES
from whet.doctor.watch import stride

FACTORS = (0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0)
SHARES = frozenset({"ZERO_VARIANCE", "ONE_SIDED", "TRUNCATED"})  # never above 1
ROUNDS = 3
LOOKS = 12  # of a run, while thresholds are searched: the verdicts of a page are of all looks
FALSE_ALARM = 20.0  # times the share of healthy runs with a warning, in the score
ROOMS: tuple[ModuleType, ...] = (completions, evaluation, exploration, preferences, rewards, sampler, updates)

Value = float | tuple[float, ...]


def values() -> dict[str, Value]:
    """The thresholds as they are."""
    return {name: value for name, value in vars(thresholds).items() if name.isupper()}


class Recorder:
    """In the place of the module of thresholds: which of them are read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(thresholds, name)


@contextmanager
def recording() -> Iterator[Recorder]:
    """All rules read the thresholds through it."""
    recorder = Recorder()
    before = {room: vars(room)["at"] for room in ROOMS if "at" in vars(room)}
    for room in before:
        vars(room)["at"] = recorder
    try:
        yield recorder
    finally:
        for room, module in before.items():
            vars(room)["at"] = module


@contextmanager
def changed(name: str, value: Value) -> Iterator[None]:
    before = getattr(thresholds, name)
    setattr(thresholds, name, value)
    try:
        yield
    finally:
        setattr(thresholds, name, before)


class Search:
    """The findings of every rule at some looks at every run; what changes with a threshold is computed again."""

    def __init__(self, runs: Sequence[Trained]) -> None:
        self.runs = runs
        self.prefixes = [[one.history.until(step) for step in _some(one)] for one in runs]
        self.steps = [_some(one) for one in runs]
        self.readers: dict[str, set[int]] = {}  # threshold → the rules that read it
        self.found: list[list[list[Finding | None]]] = []  # run → look → rule
        for prefixes in self.prefixes:
            rows = []
            for history in prefixes:
                row = []
                for place, rule in enumerate(RULES):
                    with recording() as recorder:
                        row.append(rule(history))
                    for name in recorder.read:
                        self.readers.setdefault(name, set()).add(place)
                rows.append(row)
            self.found.append(rows)

    def score(self, name: str = "", value: Value = 0.0) -> float:
        """Of the thresholds as they are, or with another value of one."""
        return score(self.verdicts(name, value))

    def verdicts(self, name: str = "", value: Value = 0.0) -> list[Verdict]:
        places = self.readers.get(name, set())
        if not name:
            return [self._verdict(number, self.found[number]) for number in range(len(self.runs))]
        with changed(name, value):
            return [self._verdict(number, self._again(number, places)) for number in range(len(self.runs))]

    def keep(self, name: str, value: Value) -> None:
        setattr(thresholds, name, value)
        places = self.readers.get(name, set())
        self.found = [self._again(number, places) for number in range(len(self.runs))]

    def _again(self, number: int, places: set[int]) -> list[list[Finding | None]]:
        rows = []
        for history, before in zip(self.prefixes[number], self.found[number], strict=True):
            row = list(before)
            for place in places:
                row[place] = RULES[place](history)
            rows.append(row)
        return rows

    def _verdict(self, number: int, rows: Sequence[Sequence[Finding | None]]) -> Verdict:
        seen: list[Look] = [
            (step, [finding for finding in row if finding is not None])
            for step, row in zip(self.steps[number], rows, strict=True)
        ]
        return verdict(self.runs[number], seen)


def _some(one: Trained) -> list[int]:
    """The steps of some looks, the last included."""
    every = stride(one.history.steps or one.history.done)
    steps = sorted({int(row["step"]) for row in one.history.rows if int(row["step"]) % every == 0} | {one.history.done})
    return sorted({steps[round(place * (len(steps) - 1) / (LOOKS - 1))] for place in range(LOOKS)})


def score(verdicts: Sequence[Verdict]) -> float:
    """What the search makes as large as it can."""
    faulty = [one for one in verdicts if one.faulty]
    healthy = [one for one in verdicts if not one.faulty]
    points = [_points(one) for one in faulty]
    alarms = sum(one.is_warned for one in healthy) / max(1, len(healthy))
    return sum(points) / max(1, len(points)) - FALSE_ALARM * alarms / 4


def _points(one: Verdict) -> float:
    early = 0.0 if one.share is None else 0.2 * (1 - one.share)
    place = 0.0 if one.rank is None or one.rank > 2 else 1.0 if one.rank == 1 else 0.8
    return float(one.is_warned) + place + early


def scaled(value: Value, factor: float) -> Value:
    if isinstance(value, tuple):
        return tuple(_rounded(factor * one) for one in value)
    return _rounded(factor * value)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def search(runs: Sequence[Trained], say: Any = sys.stdout.write) -> dict[str, Value]:
    """The thresholds that moved, with their new values."""
    finder = Search(runs)
    before = values()
    best = finder.score()
    say(f"{len(runs)} runs, score {best:.4f}\n")
    for number in range(ROUNDS):
        moved = False
        for name in sorted(finder.readers):
            now = getattr(thresholds, name)
            options = [scaled(now, factor) for factor in FACTORS]
            scores = {place: finder.score(name, option) for place, option in enumerate(options)}
            place = max(scores, key=lambda one: (scores[one], -abs(FACTORS[one] - 1)))
            if scores[place] > best + 1e-9:
                best, moved = scores[place], True
                finder.keep(name, options[place])
                say(f"round {number + 1}: {name} {now} → {options[place]}, score {best:.4f}\n")
        if not moved:
            break
    return {name: value for name, value in values().items() if value != before[name]}


def written(text: str, moved: Mapping[str, Value]) -> str:
    """The source of the thresholds with new values."""
    for name, value in moved.items():
        pattern = re.compile(rf"^{name} = [^#\n]*?(?=\s*(#|$))", re.MULTILINE)
        shown = f"({', '.join(f'{one:g}' for one in value)})" if isinstance(value, tuple) else f"{value:g}"
        text = pattern.sub(f"{name} = {shown}", text)
    return text


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("histories", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    every = histories.read(options.histories)
    runs = [one for one in every if not one.changes and one.case in CASES and CASES[one.case].half == "fit"]
    moved = search(runs)
    for name, value in moved.items():
        sys.stdout.write(f"{name} = {value}\n")
    if options.write:
        path = Path(str(thresholds.__file__))
        path.write_text(written(path.read_text("utf-8"), moved), "utf-8")


__all__ = ["looks", "main", "search"]

if __name__ == "__main__":
    main(sys.argv[1:])
