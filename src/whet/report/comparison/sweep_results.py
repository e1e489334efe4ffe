"""Results of a sweep over methods and seeds, from the directories of its runs, and their view."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from whet.errors import RunFailed
from whet.evaluate.statistics import Interval, clipped, mean_interval
from whet.report.comparison.entries import Cell, ComparisonView, Entry, Values, curves_of, failed_runs, read_curves
from whet.report.comparison.verdict import SweepVerdict, compare_with_best
from whet.report.formatting import number, percent
from whet.report.series import Series, series
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSetup:
    """Settings of a sweep."""

    recipe: str
    command: str  # that repeats the comparison
    overrides: Mapping[str, Sequence[str]]  # method → overrides of the recipe, without the seed
    seeds: Sequence[int]
    target: float  # accuracy of "steps to target"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """Result of one run."""

    seed: int
    accuracy: float | None  # held-out, after the last step; None for a run that did not finish
    curve: Series  # held-out accuracy
    seconds: float  # of training, without evaluation
    examples: int = 0  # held out
    failure: str | None = None  # why it did not finish
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)

    def reached(self, target: float) -> float:
        """First evaluated step with this accuracy; inf if there is none."""
        points = zip(self.curve.steps, self.curve.values, strict=True)
        return next((step for step, value in points if value >= target), math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodResult:
    """Results of the runs of one method."""

    method: str
    seeds: tuple[SeedResult, ...]

    @property
    def finished(self) -> tuple[SeedResult, ...]:
        return tuple(seed for seed in self.seeds if seed.accuracy is not None)

    @property
    def accuracies(self) -> dict[int, float]:
        """Seed → held-out accuracy after the last step."""
        return {seed.seed: seed.accuracy for seed in self.seeds if seed.accuracy is not None}

    @property
    def accuracy(self) -> Interval | None:
        """Mean over seeds with Student's t interval, clipped to [0, 1]; None if no run finished."""
        values = list(self.accuracies.values())
        return clipped(mean_interval(values)) if values else None

    @property
    def seconds(self) -> float | None:
        """Training time, mean over seeds."""
        return fmean(seed.seconds for seed in self.finished) if self.finished else None

    def steps_to(self, target: float) -> dict[str, Any]:
        """Steps to the target; a seed that never reached it counts as infinitely late.

        The median is None if fewer than half of the seeds reached it; first and last are of those that did.
        """
        steps = [seed.reached(target) for seed in self.finished]
        found = [int(step) for step in steps if step < math.inf]
        middle = median(steps) if steps else math.inf
        ends = {"first": min(found, default=None), "last": max(found, default=None)}
        return {"median": middle if middle < math.inf else None, **ends, "reached": len(found), "of": len(steps)}


def read_methods(
    directory: ComparisonDirectory,
    methods: Sequence[str],
    seeds: Sequence[int],
    failures: Mapping[tuple[str, int], str],
) -> list[MethodResult]:
    """Results of each method, highest mean first; methods without a finished run last."""
    results = []
    for method in methods:
        runs = [(seed, directory.run(method, seed), failures.get((method, seed), "not finished")) for seed in seeds]
        results.append(MethodResult(method=method, seeds=tuple(_read(run, seed, why) for seed, run, why in runs)))
    return sorted(results, key=lambda result: -result.accuracy.mean if result.accuracy else math.inf)


def sweep_results(
    directory: ComparisonDirectory, setup: SweepSetup, failures: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    """Contents of comparison.json, best method first."""
    methods = list(setup.overrides)
    found = read_methods(directory, methods, setup.seeds, failures)
    verdict = compare_with_best(found)
    runs = {
        (result.method, seed.seed): directory.run(result.method, seed.seed)
        for result in found
        for seed in result.finished
    }
    return {
        "kind": "sweep",
        "title": f"{setup.recipe}: {len(methods)} method{'s' if len(methods) > 1 else ''} compared",
        **asdict(setup),
        "verdict": verdict.sentence,
        "best": verdict.best,
        "comparisons": len(verdict.gaps),
        "methods": [_method(directory, setup, result, verdict) for result in found],
        "notes": _notes(found),
        "machines": _distinct(found, "machine"),
        "versions": _distinct(found, "versions"),
        "curves": read_curves({key: run for key, run in runs.items() if run is not None}),
    }


def sweep_view(results: Values) -> ComparisonView:
    target, count = results["target"], len(results["methods"])
    examples = max(seed["examples"] for method in results["methods"] for seed in method["seeds"])
    seeds = f"seed{'s' if len(results['seeds']) > 1 else ''} {', '.join(map(str, results['seeds']))}"
    return ComparisonView(
        title=results["title"],
        subtitle=f"{examples} held-out examples   {seeds}   dotted: the target of {percent(target)}",
        facts=[
            f"recipe {results['recipe']}",
            f"{count} method{'s' if count > 1 else ''}",
            seeds,
            f"{examples} held-out examples",
        ],
        verdict=[results["verdict"]],
        columns=[
            *("method", "held-out accuracy", "95 % interval", "each seed", "behind the best"),
            *(f"steps to {percent(target)}", "seconds"),
        ],
        entries=[
            Entry(
                name=method["method"],
                colour=method["colour"],
                cells=[Cell(main=text) for text in _row(method, results["best"])],
                curves=curves_of(results, method["method"]),
            )
            for method in results["methods"]
        ],
        notes=[*_legend(target), *results["notes"]],
        failures=failed_runs(results),
        command=results["command"],
        target=target,
    )


def _read(run: RunDirectory | None, seed: int, failure: str) -> SeedResult:
    curve = series(run.metrics() if run else (), "eval/accuracy")
    seconds = math.fsum(row.get("seconds/step") or 0.0 for row in run.timings()) if run else 0.0
    results = run.results() if run else None
    if run is None or results is None:
        return SeedResult(seed=seed, accuracy=None, curve=curve, seconds=seconds, failure=failure)
    accuracy = results["after"].get("eval/accuracy")
    if accuracy is None:
        raise RunFailed(f"{run.path} has no held-out accuracy, so there is nothing to compare")
    return SeedResult(
        seed=seed,
        accuracy=float(accuracy),
        curve=curve,
        seconds=seconds,
        examples=sum(row["sample"] == 0 for row in run.answers(run.answer_steps()[-1])),
        machine=results["machine"],
        versions=results["versions"],
    )


def _notes(found: Sequence[MethodResult]) -> list[str]:
    """Caveats of the comparison."""
    notes = []
    if len(_distinct(found, "machine")) > 1:
        notes.append("the runs were made on different machines: their seconds do not compare")
    if len(_distinct(found, "versions")) > 1:
        notes.append("the runs were made with different versions of the software")
    if len({seed.examples for result in found for seed in result.finished}) > 1:
        notes.append("the runs were evaluated on different numbers of held-out examples")
    return notes


def _distinct(found: Sequence[MethodResult], what: str) -> list[Mapping[str, Any]]:
    all_of_them = [getattr(seed, what) for result in found for seed in result.finished]
    return [facts for index, facts in enumerate(all_of_them) if facts not in all_of_them[:index]]


def _method(
    directory: ComparisonDirectory, setup: SweepSetup, result: MethodResult, verdict: SweepVerdict
) -> dict[str, Any]:
    gap, accuracy = verdict.gaps.get(result.method), result.accuracy
    if accuracy is not None and len(result.finished) < 2:
        accuracy = Interval(accuracy.mean, -math.inf, math.inf)  # one value has no interval: null in JSON
    return {
        "method": result.method,
        "colour": list(setup.overrides).index(result.method),
        "accuracy": accuracy and asdict(accuracy),
        "steps_to_target": result.steps_to(setup.target),
        "seconds": result.seconds,
        "behind_best": gap and {**asdict(gap.interval), "seeds": gap.seeds, "below": gap.below},
        "seeds": [
            {
                "seed": seed.seed,
                "run": str(directory.run_path(result.method, seed.seed).relative_to(directory.path)),
                "accuracy": seed.accuracy,
                "examples": seed.examples,
                "reached_target_at": seed.reached(setup.target),  # infinite becomes null
                "seconds": seed.seconds,
                "failure": seed.failure,
            }
            for seed in result.seeds
        ],
    }


def _legend(target: float) -> list[str]:
    return [
        "held-out accuracy: after the last step, mean over seeds; its interval is Student's t over seeds, cut to "
        "0 … 100 %.",
        "behind the best: accuracy of the first method minus this one's, in points, paired by seed; the intervals "
        "hold together with 95 % and include the error of finitely many held-out examples.",
        f"steps to {percent(target)}: the median of the seeds, a seed that never got there counted as later than "
        "all others, and the range of those that did; only evaluated steps are looked at.",
        "seconds: of training, evaluation not counted, mean over seeds.",
    ]


def _row(method: Values, best: str | None) -> list[str]:
    accuracy, seeds = method["accuracy"], method["seeds"]
    each = ", ".join("failed" if seed["accuracy"] is None else _points(seed["accuracy"]) for seed in seeds)
    if accuracy is None:
        return [method["method"], "–", "–", each, "–", "–", "–"]
    if accuracy["low"] is None:
        interval = "none: one seed"
    elif accuracy["low"] == accuracy["high"]:
        interval = "none: equal seeds"  # not certainty: too few examples to see a spread
    else:
        interval = f"{_points(accuracy['low'])} … {_points(accuracy['high'])} %"
    behind = "best mean" if method["method"] == best else _behind(method["behind_best"])
    mean, steps = f"{_points(accuracy['mean'])} %", _steps(**method["steps_to_target"])
    return [method["method"], mean, interval, each, behind, steps, number(method["seconds"])]


def _points(share: float) -> str:
    return f"{100 * share + 0.0:.1f}".replace("-", "−")


def _behind(gap: Values | None) -> str:
    if gap is None:
        return "too few seeds"
    ends = f"{_points(gap['mean'])} [{_points(gap['low'])} … {_points(gap['high'])}]"
    return f"{ends} {'below' if gap['below'] else 'unclear'}"


def _steps(*, median: float | None, first: int | None, last: int | None, reached: int, of: int) -> str:
    if reached == 0:
        return f"never, 0 of {of} seeds"
    spread = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    middle = spread if first == last or median is None else f"{median:,g} ({spread})"
    return middle if reached == of else f"{middle}, {reached} of {of} seeds"
