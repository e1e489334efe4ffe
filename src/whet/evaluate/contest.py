"""Results of a comparison of methods, as plain values for a JSON file. Plain Python; knows no models and no files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from whet.evaluate.best_of_n import best_of_n_curve
from whet.evaluate.judged import Judged, grid, summarise
from whet.evaluate.pairwise_judge import Opinion
from whet.evaluate.winning import tally

Rows = Sequence[Judged]
Truth = Literal["gold", "score", "judge"]  # what counts when the proxy is doubted; `score` is the task's own


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """One model of the contest: what a method came to with a seed, or where it was at a step on the way."""

    method: str
    seed: int
    step: int | None = None  # None: where it ended

    @property
    def name(self) -> str:
        """What its files and lines are called."""
        return f"{self.method}-seed-{self.seed}" + ("" if self.step is None else f"-step-{self.step}")


def contest_results(
    start: Rows,
    rows: Mapping[Entrant, Rows],
    *,
    samples: int,
    tie_margin: float,
    best_of: Sequence[int],
    opinions: Mapping[str, Opinion],
    failures: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    """All numbers, the best method first; a method whose runs all failed has none and comes last.

    `start` may hold more samples than the others: best-of-n uses all of them, everything else the first `samples`.
    """
    base = [row for row in start if row.sample < samples]
    truth = truth_of(start)
    names = list(dict.fromkeys([*(entrant.method for entrant in rows), *(method for method, _ in failures)]))
    methods = [
        _method(name, index, base, rows, tie_margin, opinions.get(name), failures) for index, name in enumerate(names)
    ]
    methods.sort(key=lambda entry: -_level(entry["summary"], truth))
    summary = summarise(base, base, tie_margin=tie_margin)
    return {
        "truth": truth,
        "start": asdict(summary),
        "spread": _spread(start, truth),
        "methods": methods,
        "best_of_n": _best_of(start, best_of, truth),
        "way": [{**asdict(entrant), **_point(own, base, tie_margin, truth)} for entrant, own in rows.items()],
        "path": [
            {"method": method, "step": step, **_point(own, base, tie_margin, truth)}
            for (method, step), own in _pooled(rows).items()
        ],
    }


def truth_of(rows: Rows) -> Truth | None:
    """The gold reward where there is one, else the task's own score, else the judge's."""
    known: dict[Truth, list[float | None]] = {
        "gold": [row.gold for row in rows],
        "score": [row.score for row in rows],
        "judge": [row.judge for row in rows],
    }
    return next((truth for truth, values in known.items() if None not in values), None)


def opinion_values(opinion: Opinion, prompts: Sequence[str]) -> dict[str, Any]:
    """A pairwise judge's opinion, one prompt's name for each comparison."""
    counts = {"contradictions": opinion.contradictions, "unreadable": opinion.unreadable}
    return {**asdict(tally(prompts, opinion.outcomes)), **counts}


def _method(
    name: str,
    colour: int,
    base: Rows,
    rows: Mapping[Entrant, Rows],
    tie_margin: float,
    opinion: Opinion | None,
    failures: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    final = {entrant: own for entrant, own in rows.items() if entrant.method == name and entrant.step is None}
    together = [row for own in final.values() for row in own]
    seeds = [
        {
            "seed": e.seed,
            "failure": None,
            "samples": e.name,
            "summary": asdict(summarise(own, base, tie_margin=tie_margin)),
        }
        for e, own in final.items()
    ]
    lost = {seed: why for (method, seed), why in failures.items() if method == name}
    seeds += [{"seed": seed, "failure": why, "samples": None, "summary": None} for seed, why in lost.items()]
    return {
        "method": name,
        "colour": colour,  # by the order in which methods were named, so that a method keeps it in every picture
        "summary": asdict(summarise(together, base, tie_margin=tie_margin)) if together else None,
        "opinion": opinion_values(opinion, [row.id for row in together]) if opinion else None,
        "seeds": sorted(seeds, key=lambda entry: entry["seed"]),
    }


def _level(summary: Mapping[str, Any] | None, truth: Truth | None) -> float:
    """What methods are ordered by."""
    if summary is None:
        return -math.inf
    return summary[truth]["mean"] if truth else 0.0


def _spread(start: Rows, truth: Truth | None) -> dict[str, Any]:
    """Mean and deviation of the start model's scores: the units in which proxy and truth can share an axis."""
    proxy = [row.proxy for row in start if row.proxy is not None]
    true = [value for value in (_true(row, truth) for row in start) if value is not None]
    return {
        name: {"mean": fmean(values), "deviation": pstdev(values)} if values else None
        for name, values in (("proxy", proxy), ("truth", true))
    }


def _true(row: Judged, truth: Truth | None) -> float | None:
    if truth is None:
        return None
    return {"gold": row.gold, "score": row.score, "judge": row.judge}[truth]


def _best_of(start: Rows, best_of: Sequence[int], truth: Truth | None) -> list[dict[str, Any]]:
    """The curve of the start model's best-of-n by the proxy; none without a proxy or without a truth beside it."""
    if truth is None or any(row.proxy is None for row in start):
        return []
    proxy = grid(start, lambda row: row.proxy)
    true = grid(start, lambda row: _true(row, truth))
    enough = [n for n in best_of if n <= min(map(len, proxy))]
    points = best_of_n_curve(proxy, true, enough)
    return [{"n": p.n, "kl": p.kl, "proxy": asdict(p.proxy), "truth": asdict(p.gold)} for p in points]


def _pooled(rows: Mapping[Entrant, Rows]) -> dict[tuple[str, int | None], list[Judged]]:
    """The completions of all seeds of a method at a step."""
    pooled: dict[tuple[str, int | None], list[Judged]] = {}
    for entrant, own in rows.items():
        pooled.setdefault((entrant.method, entrant.step), []).extend(own)
    return pooled


def _point(rows: Rows, base: Rows, tie_margin: float, truth: Truth | None) -> dict[str, Any]:
    """Where models stand: how far from the start, and what the proxy and the truth think of them."""
    values = asdict(summarise(rows, base, tie_margin=tie_margin))
    return {"kl": values["kl"], "proxy": values["proxy"], "truth": values[truth] if truth else None}
