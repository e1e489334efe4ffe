"""Results of a sweep over methods and seeds, from the directories of its runs, and their view."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from whet.errors import RunFailed
from whet.evaluate.measures import MEASURES, Measure, measure_of
from whet.evaluate.statistics import clipped, mean_interval, standard_error
from whet.number_format import number, percent
from whet.report.comparison.entries import (
    ACCURACY,
    Cell,
    ComparisonView,
    Values,
    failed_runs,
    fixed,
    mean_text,
    method_entry,
    read_curves,
)
from whet.report.comparison.verdict import compare_with_best, error_over_examples, finished
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory
from whet.runs.series import series

TARGET = 0.8  # of "steps to 80 %", for shares


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """What ranks the methods of a sweep."""

    metrics: tuple[str, ...] = tuple(measure.metric for measure in MEASURES)  # the first that all runs have
    held_out: int | None = None  # rows of data that it is measured on; None: examples of the task


BY_HEADLINE = Ranking()


def sweep_results(
    directory: ComparisonDirectory,
    failures: Mapping[tuple[str, int], str],
    *,
    recipe: str,
    command: str,
    overrides: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    target: float | None = None,
    ranking: Ranking = BY_HEADLINE,
) -> dict[str, Any]:
    """Contents of comparison.json: the method with the best mean first, methods without a finished run last.

    `command` repeats the comparison, `overrides` are those of each method, without the seed, and `target` is the value
    of "steps to target": of shares 0.8 unless it is given.
    """
    methods = []
    measure = _ranked_by(directory, overrides, seeds, ranking)
    target = TARGET if target is None and measure.is_share else target
    for colour, method in enumerate(overrides):
        failed = {seed: failures.get((method, seed), "not finished") for seed in seeds}
        own = [_seed(directory, method, seed, target, failed[seed], measure, ranking.held_out) for seed in seeds]
        methods.append({"method": method, "colour": colour, **_over_seeds(own, measure), "seeds": own})
    sign = -1 if measure.is_higher_better else 1
    methods.sort(key=lambda method: sign * method["value"]["mean"] if method["value"] else math.inf)
    verdict = compare_with_best(methods, measure)
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
        "metric": measure.metric,
        "verdict": verdict.sentence,
        "best": verdict.best,
        "comparisons": len(verdict.gaps),
        "methods": [{**method, "behind_best": verdict.gaps.get(method["method"])} for method in methods],
        "notes": [note for note, different in caveats.items() if len(different) > 1],
        "machines": machines,
        "versions": versions,
        "curves": read_curves(runs, measure.metric),
    }


def sweep_view(results: Values) -> ComparisonView:
    target, count, measure = results["target"], len(results["methods"]), measure_of(results["metric"])
    until = "" if target is None else _target(target, measure)
    dotted = f"   dotted: the target of {until}" if until else ""
    examples = max(seed["examples"] for method in results["methods"] for seed in method["seeds"])
    seeds = f"seed{'s' if len(results['seeds']) > 1 else ''} {', '.join(map(str, results['seeds']))}"
    return ComparisonView(
        title=results["title"],
        subtitle=f"{examples} held-out examples   {seeds}{dotted}",
        facts=[
            f"recipe {results['recipe']}",
            f"{count} method{'s' if count > 1 else ''}",
            seeds,
            f"{examples} held-out examples",
        ],
        verdict=[results["verdict"]],
        columns=[
            *("method", measure.label, "95 % interval", "each seed", "behind the best"),
            *([f"steps to {until}"] if until else []),
            "seconds",
        ],
        entries=[
            method_entry(results, method, [Cell(main=text) for text in _row(method, results, measure)])
            for method in results["methods"]
        ],
        notes=[*_legend(results, until, measure), *results["notes"]],
        failures=failed_runs(results),
        command=results["command"],
        target=target,
        ranked_by=measure,
    )


def _ranked_by(
    directory: ComparisonDirectory, methods: Iterable[str], seeds: Sequence[int], ranking: Ranking
) -> Measure:
    """The first of these metrics that all finished runs have; an error if there is none."""
    runs = [run for method in methods for seed in seeds if (run := directory.run(method, seed)) is not None]
    measured = [(run.path, results["after"]) for run in runs if (results := run.results()) is not None]
    found = next((name for name in ranking.metrics if all(name in after for _, after in measured)), None)
    if found is None:
        paths = ", ".join(str(path) for path, _ in measured)
        raise RunFailed(f"no held-out metric was measured in all of these runs, so nothing ranks them: {paths}")
    return measure_of(found)


def _seed(
    directory: ComparisonDirectory,
    method: str,
    seed: int,
    target: float | None,
    failure: str,
    measure: Measure,
    held_out: int | None,
) -> dict[str, Any]:
    """Result of one run; `failure` is why it did not finish, if it did not."""
    run = directory.run(method, seed)
    curve = series(run.metrics() if run else (), measure.metric)
    points = zip(curve.steps, curve.values, strict=True) if target is not None else ()
    reached = (step for step, value in points if target is not None and not measure.is_better(target, than=value))
    found = {
        "seed": seed,
        "run": str(directory.run_path(method, seed).relative_to(directory.path)),
        "value": None,  # of the metric, after the last step
        "error": None,  # its standard error over held-out examples, if it is a mean whose interval was measured
        "examples": 0,  # held out
        "reached_target_at": next(reached, None),  # an evaluated step
        "seconds": math.fsum(row.get("seconds/step") or 0.0 for row in run.timings()) if run else 0.0,
        "failure": failure,
    }
    results = run.results() if run else None
    if run is None or results is None:
        return found
    after, examples = results["after"], held_out or _examples(run, measure)
    error = _error(after, examples, measure)
    return {**found, "value": float(after[measure.metric]), "error": error, "examples": examples, "failure": None}


def _examples(run: RunDirectory, measure: Measure) -> int:
    """The held-out examples behind a metric of completions; an accuracy has those with a reference answer."""
    greedy = [row for row in run.answers(run.answer_steps()[-1]) if row["sample"] == 0]
    graded = [row for row in greedy if row["correct"] is not None]
    return len(graded if measure.metric == ACCURACY else greedy)


def _error(after: Values, examples: int, measure: Measure) -> float | None:
    low, high = (after.get(name) for name in measure.interval)
    if measure.is_share or low is None or high is None or examples < 2:
        return None
    return standard_error(low, high, examples)


def _over_seeds(seeds: Sequence[Values], measure: Measure) -> dict[str, Any]:
    """Means over the finished seeds, and the steps to the target.

    The value has Student's t interval, of shares clipped to [0, 1]. A seed that never reached the target counts as
    infinitely late: the median is None if fewer than half of them reached it; first and last are of those that did.
    """
    done = finished({"seeds": seeds})
    if not done:
        never = {"median": None, "first": None, "last": None, "reached": 0, "of": 0}
        return {"value": None, "steps_to_target": never, "seconds": None}
    over_seeds = mean_interval([seed["value"] for seed in done])
    value = asdict(clipped(over_seeds) if measure.is_share else over_seeds)
    steps = [math.inf if seed["reached_target_at"] is None else seed["reached_target_at"] for seed in done]
    found, middle = [step for step in steps if step < math.inf], median(steps)
    ends = {"first": min(found, default=None), "last": max(found, default=None)}
    return {
        "value": value if len(done) > 1 else {**value, "low": None, "high": None},
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


def _legend(results: Values, until: str, measure: Measure) -> list[str]:
    name = measure.label.removeprefix("held-out ")
    cut, unit = (", cut to 0 … 100 %", ", in points") if measure.is_share else ("", "")
    order = "of the first method minus this one's" if measure.is_higher_better else "of this method minus the first's"
    done = [seed for method in results["methods"] for seed in finished(method)]
    known = measure.is_share or error_over_examples(done) is not None
    include = "include" if known else "do not include"
    found = [
        f"{measure.label}: after the last step, mean over seeds; its interval is Student's t over seeds{cut}.",
        f"behind the best: {name} {order}{unit}, paired by seed; the intervals "
        f"hold together with 95 % and {include} the error of finitely many held-out examples.",
    ]
    if until:
        found.append(
            f"steps to {until}: the median of the seeds, a seed that never got there counted as later than "
            "all others, and the range of those that did; only evaluated steps are looked at."
        )
    return [*found, "seconds: of training, evaluation not counted, mean over seeds."]


def _row(method: Values, results: Values, measure: Measure) -> list[str]:
    value, seeds = method["value"], method["seeds"]
    show = _points if measure.is_share else number
    each = ", ".join("failed" if seed["value"] is None else show(seed["value"]) for seed in seeds)
    has_target = results["target"] is not None
    if value is None:
        return [method["method"], "–", "–", each, "–", *(["–"] if has_target else []), "–"]
    if value["low"] is None:
        interval = "none: one seed"
    elif value["low"] == value["high"]:
        interval = "none: equal seeds"  # not certainty: too few examples to see a spread
    else:
        low, high = (_shown(value[end], value, measure) for end in ("low", "high"))
        interval = f"{low} … {high}{' %' if measure.is_share else ''}"
    mean = f"{_points(value['mean'])} %" if measure.is_share else mean_text(value)
    behind = "best mean" if method["method"] == results["best"] else _behind(method["behind_best"], measure)
    steps = [_steps(**method["steps_to_target"])] if has_target else []
    return [method["method"], mean, interval, each, behind, *steps, number(method["seconds"])]


def _target(value: float, measure: Measure) -> str:
    return percent(value) if measure.is_share else number(value)


def _shown(value: float, interval: Values, measure: Measure) -> str:
    """A share in points, another number as exact as its interval."""
    return _points(value) if measure.is_share else fixed(value, interval)


def _points(share: float) -> str:
    return f"{100 * share + 0.0:.1f}".replace("-", "−")


def _behind(gap: Values | None, measure: Measure) -> str:
    if gap is None:
        return "too few seeds"
    mean, low, high = (_shown(gap[end], gap, measure) for end in ("mean", "low", "high"))
    return f"{mean} [{low} … {high}] {'worse' if gap['worse'] else 'unclear'}"


def _steps(*, median: float | None, first: int | None, last: int | None, reached: int, of: int) -> str:
    if reached == 0:
        return f"never, 0 of {of} seeds"
    spread = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    middle = spread if first == last or median is None else f"{median:,g} ({spread})"
    return middle if reached == of else f"{middle}, {reached} of {of} seeds"
