"""Models against the one that they all began with: scored completions, and what they say about who made them.

Values for a JSON file. Plain Python; knows no models and no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from whet.evaluate.pairwise_judge import JudgeVerdicts
from whet.evaluate.statistics import Interval, best_of_n_curve, wilson
from whet.evaluate.win_rates import Tally, clustered_mean, outcome, paired_gain, prompt_means, tally

Truth = Literal["gold", "score", "judge"]  # what counts when the proxy is doubted; `score` is the task's own
TRUTHS: tuple[Truth, ...] = ("gold", "score", "judge")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredCompletion:
    """One completion of a held-out prompt with all scores that it got; None: nobody was asked."""

    id: str  # of the example
    prompt: str
    sample: int  # 0, 1, …; the same sample of two models was drawn with the same random numbers
    text: str
    tokens: int  # the end of the sequence included
    finish: str
    correct: bool  # by the task's own metric
    gold: float | None  # the true reward, where the task knows it
    score: float | None  # by the task, where it knows no true reward
    proxy: float | None  # of the reward model that was trained against
    judge: float | None  # of one that was not
    logprob: float  # under the model that said it
    logprob_start: float  # under the start model
    k3: float  # mean over its tokens of r − 1 − log r, r = π_start/π

    @property
    def key(self) -> tuple[str, int]:
        """What it is compared with: the same sample of the same prompt."""
        return self.id, self.sample


Rows = Sequence[ScoredCompletion]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What the completions of one model, or of several seeds of a method, come to; intervals are over prompts."""

    gold: Interval | None
    gold_gain: Interval | None  # over the start model, paired by prompt
    score: Interval | None
    score_gain: Interval | None
    proxy: Interval | None
    proxy_gain: Interval | None
    judge: Interval | None
    wins: Tally | None  # against the start model, by the judge
    correct: Interval
    kl: Interval  # KL(model ‖ start), nats per completion: mean of log π − log π_start over its own samples
    kl_token: float  # nats per token, by the k3 estimator: less noisy, and never negative
    length: Interval  # tokens
    cut_off: float  # share of completions that did not end by themselves


def summarise(rows: Rows, start: Rows, *, tie_margin: float) -> Summary:
    """The numbers of `rows` beside those of the start model, of which only the same samples are looked at."""
    known = {row.key: row for row in start}
    if any(row.key not in known for row in rows):
        raise ValueError("the start model must have answered every sample that it is compared with")
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
    verdicts: Mapping[str, JudgeVerdicts],
    failures: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    """All numbers, the best method first; a method whose runs all failed has none and comes last.

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
    """The gold reward where there is one, else the task's own score, else the judge's."""
    return next((truth for truth in TRUTHS if _values(rows, truth) is not None), None)


def _pairwise(said: JudgeVerdicts, prompts: Sequence[str]) -> dict[str, Any]:
    """Wins by a pairwise judge, one prompt's name for each comparison."""
    counts = {"contradictions": said.contradictions, "unreadable": said.unreadable}
    return {**asdict(tally(prompts, said.outcomes)), **counts}


def _method(
    name: str,
    colour: int,
    base: Rows,
    rows: Mapping[Entrant, Rows],
    tie_margin: float,
    said: JudgeVerdicts | None,
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
        "pairwise": _pairwise(said, [row.id for row in together]) if said else None,
        "seeds": sorted(seeds, key=lambda entry: entry["seed"]),
    }


def _level(summary: Mapping[str, Any] | None, truth: Truth | None) -> float:
    """What methods are ordered by."""
    if summary is None:
        return -math.inf
    return summary[truth]["mean"] if truth else 0.0


def _spread(start: Rows, truth: Truth | None) -> dict[str, Any]:
    """Mean and deviation of the start model's scores: the units in which proxy and truth can share an axis."""
    found = {"proxy": _values(start, "proxy"), "truth": _values(start, truth) if truth else None}
    return {
        name: {"mean": fmean(values), "deviation": pstdev(values)} if values else None for name, values in found.items()
    }


def _best_of(start: Rows, best_of: Sequence[int], truth: Truth | None) -> list[dict[str, Any]]:
    """The curve of the start model's best-of-n by the proxy; none without a proxy or without a truth beside it."""
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
    """The completions of all seeds of a method at a step."""
    pooled: dict[tuple[str, int | None], list[ScoredCompletion]] = {}
    for entrant, own in rows.items():
        pooled.setdefault((entrant.method, entrant.step), []).extend(own)
    return pooled


def _point(rows: Rows, base: Rows, tie_margin: float, truth: Truth | None) -> dict[str, Any]:
    """Where models stand: how far from the start, and what the proxy and the truth think of them."""
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
    """This score of each row; None where nobody was asked."""
    values = [getattr(row, name) for row in rows]
    return None if None in values else values
