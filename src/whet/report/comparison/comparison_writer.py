"""Makes comparison.json, comparison.md and curves.png of runs that are on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from whet.errors import UserError
from whet.evaluate.statistics import Interval
from whet.report.comparison.comparison_curves import comparison_curves
from whet.report.comparison.comparison_table import document, table
from whet.report.comparison.results import MethodResult, SeedResult, read_methods
from whet.report.comparison.verdict import Verdict, judge
from whet.report.numbers import percent
from whet.runs.comparison import ComparisonDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What was compared, and how it was asked for."""

    recipe: str
    command: str  # that makes the comparison again
    overrides: Mapping[str, Sequence[str]]  # method → what was changed of the recipe, but for the seed
    seeds: Sequence[int]
    target: float  # the accuracy whose step is looked for


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What was found."""

    table: str
    verdict: Verdict
    results: Mapping[str, Any]  # as in comparison.json


def write_comparison(directory: ComparisonDirectory, setup: Setup, failures: Mapping[tuple[str, int], str]) -> Written:
    """Reads the runs, writes the three files, and says what is in them."""
    methods = list(setup.overrides)
    found = read_methods(directory, methods, setup.seeds, failures)
    verdict = judge(found)
    notes = _notes(found)
    title = f"{setup.recipe}: {len(methods)} method{'s' if len(methods) > 1 else ''} compared"
    results = _results(directory, setup, found, verdict, notes)
    directory.write(
        results=results,
        table=document(
            found,
            verdict,
            target=setup.target,
            title=title,
            command=setup.command,
            curves=directory.curves_path.name,
            notes=notes,
        ),
        curves=comparison_curves(found, target=setup.target, title=title, subtitle=_subtitle(found, setup)),
    )
    return Written(table=table(found, verdict, target=setup.target), verdict=verdict, results=results)


def rewrite_comparison(directory: ComparisonDirectory) -> Written:
    """Makes the three files again: of the same runs, asked for in the same way, as they are on disk now."""
    known = directory.results()
    parts = [field.name for field in fields(Setup)]
    absent = [part for part in (*parts, "methods") if part not in known]
    if absent:
        where = directory.results_path
        raise UserError(f"{where} has no {absent[0]!r}: it is no comparison of this version; compare again")
    seeds = [(method["method"], seed) for method in known["methods"] for seed in method["seeds"]]
    for method, seed in seeds:
        run = directory.run(method, seed["seed"])
        if seed["accuracy"] is not None and (run is None or not run.finished):
            gone = directory.run_path(method, seed["seed"])
            raise UserError(f"{gone} is gone, and the comparison was made from it; put the run back, or compare again")
    failures = {(method, seed["seed"]): seed["failure"] for method, seed in seeds if seed["failure"]}
    return write_comparison(directory, Setup(**{part: known[part] for part in parts}), failures)


def _subtitle(found: Sequence[MethodResult], setup: Setup) -> str:
    examples = max(seed.examples for result in found for seed in result.seeds)
    return (
        f"held-out accuracy in %, {examples} examples   seeds {', '.join(map(str, setup.seeds))}   "
        f"dotted: the target of {percent(setup.target)}"
    )


def _notes(found: Sequence[MethodResult]) -> list[str]:
    """What a reader must know before comparing the numbers."""
    notes = []
    if len(_distinct(found, "machine")) > 1:
        notes.append("the runs were made on different machines: their seconds do not compare")
    if len(_distinct(found, "versions")) > 1:
        notes.append("the runs were made with different versions of the software")
    if len({seed.examples for result in found for seed in result.finished}) > 1:
        notes.append("the runs were evaluated on different numbers of held-out examples")
    return notes


def _distinct(found: Sequence[MethodResult], what: str) -> list[Mapping[str, Any]]:
    all_of_them = [asdict(seed)[what] for result in found for seed in result.finished]
    return [facts for index, facts in enumerate(all_of_them) if facts not in all_of_them[:index]]


def _results(
    directory: ComparisonDirectory,
    setup: Setup,
    found: Sequence[MethodResult],
    verdict: Verdict,
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        **asdict(setup),
        "verdict": verdict.sentence,
        "best": verdict.best,
        "comparisons": len(verdict.gaps),
        "methods": [_method(directory, setup, result, verdict) for result in found],
        "notes": list(notes),
        "machines": _distinct(found, "machine"),
        "versions": _distinct(found, "versions"),
    }


def _method(directory: ComparisonDirectory, setup: Setup, result: MethodResult, verdict: Verdict) -> dict[str, Any]:
    gap = verdict.gaps.get(result.method)
    alone = len(result.finished) < 2  # one value has no interval
    return {
        "method": result.method,
        "accuracy": None if result.accuracy is None else _ends(result.accuracy, bare=alone),
        "steps_to_target": asdict(result.steps_to(setup.target)),
        "seconds": result.seconds,
        "behind_best": None if gap is None else {**_ends(gap.interval), "seeds": gap.seeds, "below": gap.below},
        "seeds": [
            _seed(seed, setup.target, str(directory.run_path(result.method, seed.seed).relative_to(directory.path)))
            for seed in result.seeds
        ],
    }


def _ends(interval: Interval, *, bare: bool = False) -> dict[str, float | None]:
    return {"mean": interval.mean, "low": None if bare else interval.low, "high": None if bare else interval.high}


def _seed(seed: SeedResult, target: float, run: str) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "run": run,
        "accuracy": seed.accuracy,
        "examples": seed.examples,
        "reached_target_at": seed.reached(target),  # infinite becomes null
        "seconds": seed.seconds,
        "failure": seed.failure or None,
        "curve": {"steps": list(seed.curve.steps), "accuracy": list(seed.curve.values)},
    }
