"""Results of a sweep, read from the directories of its runs, best method first. Knows no training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from whet.errors import RunFailed
from whet.evaluate.statistics import Interval, clipped, mean_interval
from whet.report.series import Series, series
from whet.runs.comparison import ComparisonDirectory
from whet.runs.directory import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """What one run came to."""

    seed: int
    accuracy: float | None  # held out, after the last step; None where the run did not finish
    curve: Series  # held-out accuracy at the steps that were evaluated
    examples: int  # held out
    seconds: float  # of training, evaluation not counted
    failure: str  # why it did not finish; empty where it did
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]

    def reached(self, target: float) -> float:
        """The first evaluated step with this accuracy; infinite where there was none."""
        points = zip(self.curve.steps, self.curve.values, strict=True)
        return next((step for step, value in points if value >= target), math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """What the runs of one method came to."""

    method: str
    seeds: tuple[SeedResult, ...]

    @property
    def finished(self) -> tuple[SeedResult, ...]:
        """The runs that came to their end, the only ones that count."""
        return tuple(seed for seed in self.seeds if seed.accuracy is not None)

    @property
    def accuracies(self) -> dict[int, float]:
        """Seed → held-out accuracy after the last step."""
        return {seed.seed: seed.accuracy for seed in self.seeds if seed.accuracy is not None}

    @property
    def accuracy(self) -> Interval | None:
        """Mean over seeds with Student's t interval, cut to [0, 1]; None where no run finished."""
        values = list(self.accuracies.values())
        return clipped(mean_interval(values)) if values else None

    @property
    def seconds(self) -> float | None:
        """Of training, mean over seeds."""
        return fmean(seed.seconds for seed in self.finished) if self.finished else None

    def steps_to(self, target: float) -> StepsTo:
        """When the target was reached: a seed that never did counts as later than all others."""
        steps = [seed.reached(target) for seed in self.finished]
        found = [int(step) for step in steps if step < math.inf]
        middle = median(steps) if steps else math.inf
        return StepsTo(
            median=middle if middle < math.inf else None,
            first=min(found, default=None),
            last=max(found, default=None),
            reached=len(found),
            of=len(steps),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepsTo:
    """At which step the seeds of a method reached the target."""

    median: float | None  # None where fewer than half of the seeds reached it
    first: int | None  # of the seeds that reached it
    last: int | None
    reached: int  # seeds
    of: int  # seeds


def read_methods(
    directory: ComparisonDirectory,
    methods: Sequence[str],
    seeds: Sequence[int],
    failures: Mapping[tuple[str, int], str],
) -> list[MethodResult]:
    """The results of each method, the highest mean first; methods without a finished run come last."""
    results = [
        MethodResult(
            method=method,
            seeds=tuple(
                _read(directory.run(method, seed), seed, failures.get((method, seed), "not finished")) for seed in seeds
            ),
        )
        for method in methods
    ]
    return sorted(results, key=lambda result: -result.accuracy.mean if result.accuracy else math.inf)


def _read(run: Run | None, seed: int, failure: str) -> SeedResult:
    curve = series(run.metrics() if run else (), "eval/accuracy")
    results = run.results() if run else None
    if run is not None and results is not None:
        accuracy = results["after"].get("eval/accuracy")
        if accuracy is None:
            raise RunFailed(f"{run.path} has no held-out accuracy, so there is nothing to compare")
        return SeedResult(
            seed=seed,
            accuracy=float(accuracy),
            curve=curve,
            examples=sum(row["sample"] == 0 for row in run.answers(run.answer_steps()[-1])),
            seconds=_seconds(run),
            failure="",
            machine=results["machine"],
            versions=results["versions"],
        )
    return SeedResult(
        seed=seed,
        accuracy=None,
        curve=curve,
        examples=0,
        seconds=_seconds(run) if run else 0.0,
        failure=failure,
        machine={},
        versions={},
    )


def _seconds(run: Run) -> float:
    return math.fsum(row.get("seconds/step") or 0.0 for row in run.timings())
