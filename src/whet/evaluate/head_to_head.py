"""Trained models against their common start model: summaries of scored completions, as JSON values. Plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from whet.evaluate.pairwise_judge import JudgeVerdicts
from whet.evaluate.statistics import Interval, best_of_n_curve, wilson
from whet.evaluate.win_rates import WinTally, clustered_mean, outcome, paired_gain, prompt_means, tally

Truth = Literal["gold", "score", "judge"]  # the best available measure; `score` is the task's
TRUTHS: tuple[Truth, ...] = ("gold", "score", "judge")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredCompletion:
    """One completion of a held-out prompt with its scores; None: not scored."""

    id: str  # of the example
    prompt: str
    sample: int  # 0, 1, …; the same sample of two models has the same random numbers
    text: str
    tokens: int  # with the end of the sequence
    finish: str
    correct: bool  # by the task's metric
    gold: float | None  # the gold reward, if the task has one
    score: float | None  # by a task without a gold reward
    proxy: float | None  # by the reward model of the training
    judge: float | None  # by another reward model
    logprob: float  # under its own model
    logprob_start: float  # under the start model
    k3: float  # mean over its tokens of r − 1 − log r, r = π_start/π

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.sample


Rows = Sequence[ScoredCompletion]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The metrics of one model, or of several seeds of a method; intervals are over prompts."""

    gold: Interval | None
    gold_gain: Interval | None  # over the start model, paired by prompt
    score: Interval | None
    score_gain: Interval | None
    proxy: Interval | None
    proxy_gain: Interval | None
    judge: Interval | None
    wins: WinTally | None  # against the start model, by the judge
    correct: Interval
    kl: Interval  # KL(model ‖ start), nats per completion: mean of log π − log π_start over its own samples
    kl_token: float  # nats per token, by the k3 estimator: less noisy, and never negative
    length: Interval  # tokens
    cut_off: float  # share of truncated completions


def summarise(rows: Rows, start: Rows, *, tie_margin: float) -> Summary:
    """The metrics of `rows` against the same samples of the start model."""
    known = {row.key: row for row in start}
    if any(row.key not in known for row in rows):
        raise ValueError("the start model lacks a sample to compare with")
    other = [known[key] for key in dict.fromkeys(row.key for row in rows)]
    ids = [row.id for row in rows]
    right = prompt_means(ids, [float(row.correct) for row in rows])
    gains = {f"{name}_gain": _gain(rows, other, name) for name in ("gold", "score", "proxy")}
    own, base = _values(rows, "judge"), _values([known[row.key] for row in rows], "judge")
    wins = None
    if own is not None and base is not None:
        pairs = zip(own, base, strict=True)
        wins = tally(ids, [outcome(mine, theirs, tie_margin=tie_margin) for mine, theirs in pairs])
    return Summary(
        gold=_mean(rows, "gold"),
        score=_mean(rows, "score"),
        proxy=_mean(rows, "proxy"),
        judge=_mean(rows, "judge"),
        **gains,
        wins=wins,
        correct=wilson(sum(right.values()), len(right)),
        kl=clustered_mean(ids, [row.logprob - row.logprob_start for row in rows]),
        kl_token=fmean([row.k3 for row in rows], [row.tokens for row in rows]),
        length=clustered_mean(ids, [float(row.tokens) for row in rows]),
        cut_off=fmean(row.finish == "length" for row in rows),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """One compared model: a method and seed, at the end or at an earlier step."""

    method: str
    seed: int
    step: int | None = None  # None: at the end

    @property
    def name(self) -> str:
        return f"{self.method}-seed-{self.seed}" + ("" if self.step is None else f"-step-{self.step}")


def contest_results(
    start: Rows,
    rows: Mapping[Entrant, Rows],
    *,
    samples: int,
    tie_margin: float,
    best_of: Sequence[int],
    verdicts: Mapping[str, JudgeVerdicts],
    failures: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    """All metrics, the best method first; a method whose runs all failed comes last without any.

    `start` may hold more samples than the others: best-of-n uses all of them, everything else the first `samples`.
    """
    base = [row for row in start if row.sample < samples]
    truth = truth_of(start)
    names = list(dict.fromkeys([*(entrant.method for entrant in rows), *(method for method, _ in failures)]))
    methods = [
        _method(name, index, base, rows, tie_margin, verdicts.get(name), failures) for index, name in enumerate(names)
    ]
    methods.sort(key=lambda entry: -_level(entry["summary"], truth))
    summary = summarise(base, base, tie_margin=tie_margin)
    return {
        "truth": truth,
        "start": asdict(summary),
        "spread": _spread(start, truth),
        "methods": methods,
        "best_of_n": _best_of(start, best_of, truth),
        "checkpoints": [{**asdict(entrant), **_point(own, base, tie_margin, truth)} for entrant, own in rows.items()],
        "pooled_checkpoints": [
            {"method": method, "step": step, **_point(own, base, tie_margin, truth)}
            for (method, step), own in _pooled(rows).items()
        ],
    }


def truth_of(rows: Rows) -> Truth | None:
    """The gold reward if there is one, else the task's score, else the judge's."""
    return next((truth for truth in TRUTHS if _values(rows, truth) is not None), None)


def _method(
    name: str,
    colour: int,
    base: Rows,
    rows: Mapping[Entrant, Rows],
    tie_margin: float,
    verdicts: JudgeVerdicts | None,
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
    pairwise = None
    if verdicts:
        counts = {"contradictions": verdicts.contradictions, "unreadable": verdicts.unreadable}
        pairwise = asdict(tally([row.id for row in together], verdicts.outcomes)) | counts
    lost = {seed: why for (method, seed), why in failures.items() if method == name}
    seeds += [{"seed": seed, "failure": why, "samples": None, "summary": None} for seed, why in lost.items()]
    return {
        "method": name,
        "colour": colour,  # by the order of methods, the same in every picture
        "summary": asdict(summarise(together, base, tie_margin=tie_margin)) if together else None,
        "pairwise": pairwise,
        "seeds": sorted(seeds, key=lambda entry: entry["seed"]),
    }


def _level(summary: Mapping[str, Any] | None, truth: Truth | None) -> float:
    if summary is None:
        return -math.inf
    return summary[truth]["mean"] if truth else 0.0


def _spread(start: Rows, truth: Truth | None) -> dict[str, Any]:
    """Mean and deviation of the start model's scores, to plot proxy and truth on one axis."""
    found = {"proxy": _values(start, "proxy"), "truth": _values(start, truth) if truth else None}
    return {
        name: {"mean": fmean(values), "deviation": pstdev(values)} if values else None for name, values in found.items()
    }


def _best_of(start: Rows, best_of: Sequence[int], truth: Truth | None) -> list[dict[str, Any]]:
    """The best-of-n curve of the start model by the proxy; empty without a proxy or a truth."""
    if truth is None or _values(start, "proxy") is None:
        return []
    by_prompt: dict[str, list[ScoredCompletion]] = {}
    for row in start:
        by_prompt.setdefault(row.id, []).append(row)
    proxy, true = ([[getattr(row, name) for row in own] for own in by_prompt.values()] for name in ("proxy", truth))
    enough = [n for n in best_of if n <= min(map(len, proxy))]
    points = best_of_n_curve(proxy, true, enough)
    return [{"n": p.n, "kl": p.kl, "proxy": asdict(p.proxy), "truth": asdict(p.gold)} for p in points]


def _pooled(rows: Mapping[Entrant, Rows]) -> dict[tuple[str, int | None], list[ScoredCompletion]]:
    pooled: dict[tuple[str, int | None], list[ScoredCompletion]] = {}
    for entrant, own in rows.items():
        pooled.setdefault((entrant.method, entrant.step), []).extend(own)
    return pooled


def _point(rows: Rows, base: Rows, tie_margin: float, truth: Truth | None) -> dict[str, Any]:
    """KL from the start model, proxy and truth."""
    values = asdict(summarise(rows, base, tie_margin=tie_margin))
    return {"kl": values["kl"], "proxy": values["proxy"], "truth": values[truth] if truth else None}


def _mean(rows: Rows, name: str) -> Interval | None:
    values = _values(rows, name)
    return None if values is None else clustered_mean([row.id for row in rows], values)


def _gain(rows: Rows, other: Rows, name: str) -> Interval | None:
    own, start = _values(rows, name), _values(other, name)
    if own is None or start is None:
        return None
    return paired_gain(prompt_means([row.id for row in rows], own), prompt_means([row.id for row in other], start))


def _values(rows: Rows, name: str) -> list[float] | None:
    """This score of each row; None if any is missing."""
    values = [getattr(row, name) for row in rows]
    return None if None in values else values
