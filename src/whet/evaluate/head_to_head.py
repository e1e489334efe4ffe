"""Trained models against their common start model: summaries of scored completions, as JSON values. Plain Python."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from statistics import fmean, pstdev
from typing import Any, Literal

from whet.evaluate.calibration import clustered
from whet.evaluate.pairwise_judge import JudgeVerdicts
from whet.evaluate.statistics import Interval, best_of_n, best_of_n_kl, mean_interval, wilson
from whet.evaluate.win_rates import clustered_mean, outcome, paired_gain, prompt_means, tally

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
    correct: bool | None  # by the task's metric; None: no reference answer
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


def summarise(rows: Rows, start: Rows, *, tie_margin: float) -> dict[str, Any]:
    """The metrics of one model, or of several seeds of a method, against the same samples of the start model.

    Intervals are over prompts; None stands for scores that were not measured.
    """
    known = {row.key: row for row in start}
    if any(row.key not in known for row in rows):
        raise ValueError("the start model lacks a sample to compare with")
    other = [known[key] for key in dict.fromkeys(row.key for row in rows)]
    ids = [row.id for row in rows]
    graded = [row for row in rows if row.correct is not None]
    right = prompt_means([row.id for row in graded], [float(bool(row.correct)) for row in graded])
    own, base = _values(rows, "judge"), _values([known[row.key] for row in rows], "judge")
    wins = None
    if own is not None and base is not None:
        pairs = zip(own, base, strict=True)
        wins = tally(ids, [outcome(mine, theirs, tie_margin=tie_margin) for mine, theirs in pairs])
    intervals = {
        **{name: _mean(rows, name) for name in ("gold", "score", "proxy", "judge")},
        **{f"{name}_gain": _gain(rows, other, name) for name in ("gold", "score", "proxy")},  # paired by prompt
        "correct": wilson(sum(right.values()), len(right)) if right else None,
        # KL(model ‖ start), nats per completion: mean of log π − log π_start over its own samples.
        "kl": clustered_mean(ids, [row.logprob - row.logprob_start for row in rows]),
        "length": clustered_mean(ids, [float(row.tokens) for row in rows]),  # tokens
    }
    return {
        **{name: interval and asdict(interval) for name, interval in intervals.items()},
        "wins": wins,  # by the judge
        # Nats per token, by the k3 estimator: less noisy, and never negative.
        "kl_token": fmean([row.k3 for row in rows], [row.tokens for row in rows]),
        "cut_off": fmean(row.finish == "length" for row in rows),  # share of truncated completions
    }


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
    against = partial(summarise, start=base, tie_margin=tie_margin)
    methods = [_method(name, index, rows, against, verdicts.get(name), failures) for index, name in enumerate(names)]
    methods.sort(key=lambda entry: -_level(entry["summary"], truth))
    return {
        "truth": truth,
        "start": against(base),
        "spread": _spread(start, truth),
        "methods": methods,
        "best_of_n": _best_of(start, best_of, truth),
        "checkpoints": [{**asdict(entrant), **_point(against(own), truth)} for entrant, own in rows.items()],
        "pooled_checkpoints": [
            {"method": method, "step": step, **_point(against(own), truth)}
            for (method, step), own in _pooled(rows).items()
        ],
    }


def truth_of(rows: Rows) -> Truth | None:
    """The gold reward if there is one, else the task's score, else the judge's."""
    return next((truth for truth in TRUTHS if _values(rows, truth) is not None), None)


def _method(
    name: str,
    colour: int,
    rows: Mapping[Entrant, Rows],
    against: Callable[[Rows], dict[str, Any]],
    verdicts: JudgeVerdicts | None,
    failures: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    final = {entrant: own for entrant, own in rows.items() if entrant.method == name and entrant.step is None}
    together = [row for own in final.values() for row in own]
    seeds = [{"seed": e.seed, "failure": None, "samples": e.name, "summary": against(own)} for e, own in final.items()]
    pairwise = None
    if verdicts:
        counts = {"contradictions": verdicts.contradictions, "unreadable": verdicts.unreadable}
        pairwise = tally([row.id for row in together], verdicts.outcomes) | counts
    lost = {seed: why for (method, seed), why in failures.items() if method == name}
    seeds += [{"seed": seed, "failure": why, "samples": None, "summary": None} for seed, why in lost.items()]
    return {
        "method": name,
        "colour": colour,  # by the order of methods, the same in every picture
        "summary": against(together) if together else None,
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
    """Best-of-n of the start model by the proxy, the over-optimisation curve of Gao et al. 2022.

    Empty without a proxy or a truth.
    """
    if truth is None or _values(start, "proxy") is None:
        return []
    ids = [row.id for row in start]
    proxy, true = (clustered(ids, [getattr(row, name) for row in start]).values() for name in ("proxy", truth))
    points = []
    for n in (n for n in best_of if n <= min(map(len, proxy))):
        means = {"proxy": [best_of_n(own, own, n) for own in proxy], "truth": [*map(best_of_n, proxy, true, repeat(n))]}
        intervals = {name: asdict(mean_interval(values)) for name, values in means.items()}
        points.append({"n": n, "kl": best_of_n_kl(n), **intervals})
    return points


def _pooled(rows: Mapping[Entrant, Rows]) -> dict[tuple[str, int | None], list[ScoredCompletion]]:
    pooled: dict[tuple[str, int | None], list[ScoredCompletion]] = {}
    for entrant, own in rows.items():
        pooled.setdefault((entrant.method, entrant.step), []).extend(own)
    return pooled


def _point(summary: Mapping[str, Any], truth: Truth | None) -> dict[str, Any]:
    """KL from the start model, proxy and truth."""
    return {"kl": summary["kl"], "proxy": summary["proxy"], "truth": summary[truth] if truth else None}


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
