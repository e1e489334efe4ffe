"""Results of a sweep over methods and seeds, from the directories of its runs, and their view."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from whet.errors import RunFailed
from whet.evaluate.statistics import clipped, mean_interval
from whet.report.comparison.entries import (
    ACCURACY,
    Cell,
    ComparisonView,
    Values,
    failed_runs,
    method_entry,
    read_curves,
)
from whet.report.comparison.verdict import compare_with_best, finished
from whet.report.formatting import number, percent
from whet.report.series import series
from whet.runs.experiment_directories import ComparisonDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """What ranks the methods of a sweep."""

    metrics: tuple[str, ...] = (ACCURACY,)  # the first that all runs have
    held_out: int | None = None  # rows of data that it is measured on; None: examples of the task


BY_ACCURACY = Ranking()


def sweep_results(
    directory: ComparisonDirectory,
    failures: Mapping[tuple[str, int], str],
    *,
    recipe: str,
    command: str,
    overrides: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    target: float,
    ranking: Ranking = BY_ACCURACY,
) -> dict[str, Any]:
    """Contents of comparison.json: the method with the highest mean first, methods without a finished run last.

    `command` repeats the comparison, `overrides` are those of each method, without the seed, and `target` is the
    accuracy of "steps to target". `ranking` names the metric that is called accuracy here.
    """
    methods = []
    metric = _ranked_by(directory, overrides, seeds, ranking)
    for colour, method in enumerate(overrides):
        failed = {seed: failures.get((method, seed), "not finished") for seed in seeds}
        own = [_seed(directory, method, seed, target, failed[seed], metric, ranking.held_out) for seed in seeds]
        methods.append({"method": method, "colour": colour, **_over_seeds(own), "seeds": own})
    methods.sort(key=lambda method: -method["accuracy"]["mean"] if method["accuracy"] else math.inf)
    verdict = compare_with_best(methods, spoken(metric))
    done = {(method["method"], seed["seed"]): seed["examples"] for method in methods for seed in finished(method)}
    runs = {key: run for key in done if (run := directory.run(*key)) is not None}
    results = [run.results() or {} for run in runs.values()]
    machines, versions = (_distinct(result[name] for result in results) for name in ("machine", "versions"))
    caveats = {
        "the runs were made on different machines: their seconds do not compare": machines,
        "the runs were made with different versions of the software": versions,
        "the runs were evaluated on different numbers of held-out examples": set(done.values()),
    }
    return {
        "kind": "sweep",
        "title": f"{recipe}: {len(methods)} method{'s' if len(methods) > 1 else ''} compared",
        **{"recipe": recipe, "command": command, "overrides": overrides, "seeds": seeds, "target": target},
        "metric": metric,
        "verdict": verdict.sentence,
        "best": verdict.best,
        "comparisons": len(verdict.gaps),
        "methods": [{**method, "behind_best": verdict.gaps.get(method["method"])} for method in methods],
        "notes": [note for note, different in caveats.items() if len(different) > 1],
        "machines": machines,
        "versions": versions,
        "curves": read_curves(runs),
    }


def sweep_view(results: Values) -> ComparisonView:
    target, count = results["target"], len(results["methods"])
    metric = results.get("metric", ACCURACY)  # of older versions: none
    measure = spoken(metric)
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
            *("method", f"held-out {measure}", "95 % interval", "each seed", "behind the best"),
            *(f"steps to {percent(target)}", "seconds"),
        ],
        entries=[
            method_entry(results, method, [Cell(main=text) for text in _row(method, results["best"])])
            for method in results["methods"]
        ],
        notes=[*_legend(target, measure), *results["notes"]],
        failures=failed_runs(results),
        command=results["command"],
        target=target,
        ranked_by=metric,
    )


def spoken(metric: str) -> str:
    """`pair accuracy` for eval/pair_accuracy."""
    return metric.removeprefix("eval/").replace("_", " ")


def _ranked_by(directory: ComparisonDirectory, methods: Iterable[str], seeds: Sequence[int], ranking: Ranking) -> str:
    """The first of these metrics that all finished runs have; an error if there is none."""
    runs = [run for method in methods for seed in seeds if (run := directory.run(method, seed)) is not None]
    measured = [(run.path, results["after"]) for run in runs if (results := run.results()) is not None]
    found = next((name for name in ranking.metrics if all(name in after for _, after in measured)), None)
    if found is None:
        path = next(path for path, after in measured if not any(name in after for name in ranking.metrics))
        raise RunFailed(f"{path} has no held-out accuracy, so there is nothing to compare")
    return found


def _seed(
    directory: ComparisonDirectory,
    method: str,
    seed: int,
    target: float,
    failure: str,
    metric: str,
    held_out: int | None,
) -> dict[str, Any]:
    """Result of one run; `failure` is why it did not finish, if it did not."""
    run = directory.run(method, seed)
    curve = series(run.metrics() if run else (), metric)
    points = zip(curve.steps, curve.values, strict=True)
    found = {
        "seed": seed,
        "run": str(directory.run_path(method, seed).relative_to(directory.path)),
        "accuracy": None,
        "examples": 0,  # held out
        "reached_target_at": next((step for step, value in points if value >= target), None),  # an evaluated step
        "seconds": math.fsum(row.get("seconds/step") or 0.0 for row in run.timings()) if run else 0.0,
        "failure": failure,
    }
    results = run.results() if run else None
    if run is None or results is None:
        return found
    examples = held_out or sum(row["sample"] == 0 for row in run.answers(run.answer_steps()[-1]))
    return {**found, "accuracy": float(results["after"][metric]), "examples": examples, "failure": None}


def _over_seeds(seeds: Sequence[Values]) -> dict[str, Any]:
    """Means over the finished seeds, and the steps to the target.

    The accuracy has Student's t interval, clipped to [0, 1]. A seed that never reached the target counts as infinitely
    late: the median is None if fewer than half of the seeds reached it; first and last are of those that did.
    """
    done = finished({"seeds": seeds})
    if not done:
        never = {"median": None, "first": None, "last": None, "reached": 0, "of": 0}
        return {"accuracy": None, "steps_to_target": never, "seconds": None}
    accuracy = asdict(clipped(mean_interval([seed["accuracy"] for seed in done])))
    steps = [math.inf if seed["reached_target_at"] is None else seed["reached_target_at"] for seed in done]
    found, middle = [step for step in steps if step < math.inf], median(steps)
    ends = {"first": min(found, default=None), "last": max(found, default=None)}
    return {
        "accuracy": accuracy if len(done) > 1 else {**accuracy, "low": None, "high": None},
        "steps_to_target": {
            "median": middle if middle < math.inf else None,
            **ends,
            "reached": len(found),
            "of": len(steps),
        },
        "seconds": fmean(seed["seconds"] for seed in done),
    }


def _distinct(facts: Iterable[Values]) -> list[Values]:
    found: list[Values] = []
    for one in facts:
        if one not in found:
            found.append(one)
    return found


def _legend(target: float, measure: str) -> list[str]:
    return [
        f"held-out {measure}: after the last step, mean over seeds; its interval is Student's t over seeds, cut to "
        "0 … 100 %.",
        f"behind the best: {measure} of the first method minus this one's, in points, paired by seed; the intervals "
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
