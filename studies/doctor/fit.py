"""Fits the thresholds of the doctor to the faults and healthy runs of the part `fit`; the others are not read.

    python -m studies.doctor.fit histories.jsonl.gz --write

A plain search: of all thresholds, multiplied by each of `FACTORS`, the move with the best score is made, again and
again, as long as the score rises by `GAIN`: less is the luck of single runs. No threshold leaves `LIMITS`, beyond which
it would contradict what its rule says. The score is the mean over faults of what is detected, ranked first and among
the first two, and of how early, less the share of healthy runs with a warning many times over. `--write` puts the
values into whet/doctor/thresholds.py.
"""

from __future__ import annotations

import argparse
import math
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
from whet.doctor.rules import completions, evaluation, exploration, preferences, progress, rewards, sampler, updates
from whet.doctor.rules.all_rules import RULES
from whet.doctor.watch import stride

FACTORS = (0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0)
GAIN = 0.01
LIMITS: Mapping[str, tuple[float, float]] = {
    "CLIPPED": (0.1, 0.9),  # a tenth of the tokens are clipped in healthy runs of PPO
    "DRIFT": (1.2, 10.0),
    "DUPLICATE_PROMPTS": (0.2, 0.95),
    "DUPLICATE_ROLLOUTS": (0.4, 0.95),
    "EFFECTIVE": (0.05, 0.8),
    "GAP": (0.1, 0.6),
    "IDLE": (0.1, 0.9),
    "LENGTH_BIAS": (0.3, 0.9),
    "LENGTH_CORRELATION": (0.3, 0.9),
    "LONGER": (1.2, 10.0),
    "MISCALIBRATED": (0.05, 0.4),
    "MISMATCH_GROWTH": (2.0, 100.0),
    "ONE_PART": (0.7, 0.99),
    "ONE_SIDED": (0.6, 1.0),
    "OVERFIT": (1.02, 2.0),
    "REPEATED": (0.05, 0.8),
    "REWARD_RISE": (0.02, 0.3),
    "RISE": (1.15, 4.0),
    "SATURATED": (0.8, 0.995),
    "SKIPPED": (0.1, 0.9),
    "TRUNCATED": (0.02, 0.8),
    "ZERO_GRADIENT": (0.05, 0.9),
    "ZERO_VARIANCE": (0.1, 0.95),
}
LOOKS = 12  # of a run, while thresholds are searched: the verdicts of a page are of all looks
FALSE_ALARM = 20.0  # times the share of healthy runs with a warning, in the score
ROOMS: tuple[ModuleType, ...] = (completions, evaluation, exploration, preferences, progress, rewards, sampler, updates)

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


def allowed(name: str, value: Value) -> bool:
    low, high = LIMITS.get(name, (-math.inf, math.inf))
    return all(low <= one <= high for one in (value if isinstance(value, tuple) else (value,)))


def search(runs: Sequence[Trained], say: Any = sys.stdout.write) -> dict[str, Value]:
    """The thresholds that moved, with their new values."""
    finder = Search(runs)
    before = values()
    best = finder.score()
    say(f"{len(runs)} runs, score {best:.4f}\n")
    while True:
        moves = [
            (finder.score(name, option), -abs(math.log(factor)), name, option)
            for name in sorted(finder.readers)
            for factor in FACTORS
            if allowed(name, option := scaled(getattr(thresholds, name), factor))
        ]
        score, _, name, value = max(moves, key=lambda move: move[:2])
        if score < best + GAIN:
            break
        say(f"{name} {getattr(thresholds, name)} → {value}, score {score:.4f}\n")
        finder.keep(name, value)
        best = score
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
    runs = [one for one in every if not one.changes and one.case in CASES and CASES[one.case].part == "fit"]
    moved = search(runs)
    for name, value in moved.items():
        sys.stdout.write(f"{name} = {value}\n")
    if options.write:
        path = Path(str(thresholds.__file__))
        path.write_text(written(path.read_text("utf-8"), moved), "utf-8")


__all__ = ["looks", "main", "search"]

if __name__ == "__main__":
    main(sys.argv[1:])
