"""Completions that were judged, and what they say about the model that made them. Plain Python; knows no models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from whet.evaluate.statistics import Interval, wilson
from whet.evaluate.winning import Tally, clustered_mean, outcome, paired_gain, prompt_means, tally


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One completion of a held-out prompt, and what everybody thinks of it; None: nobody was asked."""

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


def summarise(rows: Sequence[Judged], start: Sequence[Judged], *, tie_margin: float) -> Summary:
    """The numbers of `rows` beside those of the start model, of which only the same samples are looked at."""
    wanted = {row.key for row in rows}
    other = {row.key: row for row in start if row.key in wanted}
    if other.keys() != wanted:
        raise ValueError("the start model must have answered every sample that it is compared with")
    right = prompt_means(_ids(rows), [float(row.correct) for row in rows])
    return Summary(
        gold=_mean(rows, _gold),
        gold_gain=_gain(rows, other, _gold),
        score=_mean(rows, _score),
        score_gain=_gain(rows, other, _score),
        proxy=_mean(rows, _proxy),
        proxy_gain=_gain(rows, other, _proxy),
        judge=_mean(rows, _judge),
        wins=_wins(rows, other, tie_margin),
        correct=wilson(sum(right.values()), len(right)),
        kl=clustered_mean(_ids(rows), [row.logprob - row.logprob_start for row in rows]),
        kl_token=fmean([row.k3 for row in rows], [row.tokens for row in rows]),
        length=clustered_mean(_ids(rows), [float(row.tokens) for row in rows]),
        cut_off=fmean(row.finish == "length" for row in rows),
    )


def grid(rows: Sequence[Judged], what: Callable[[Judged], float | None]) -> list[list[float]]:
    """(P, N): a value of every sample of every prompt, prompts in the order in which they come."""
    together: dict[str, list[float]] = {}
    for row in rows:
        value = what(row)
        assert value is not None
        together.setdefault(row.id, []).append(value)
    return list(together.values())


def _mean(rows: Sequence[Judged], what: Callable[[Judged], float | None]) -> Interval | None:
    values = _values(rows, what)
    return None if values is None else clustered_mean(_ids(rows), values)


def _gain(
    rows: Sequence[Judged], other: Mapping[tuple[str, int], Judged], what: Callable[[Judged], float | None]
) -> Interval | None:
    own, start = _values(rows, what), _values(list(other.values()), what)
    if own is None or start is None:
        return None
    return paired_gain(prompt_means(_ids(rows), own), prompt_means([row.id for row in other.values()], start))


def _wins(rows: Sequence[Judged], other: Mapping[tuple[str, int], Judged], tie_margin: float) -> Tally | None:
    own, start = _values(rows, _judge), _values([other[row.key] for row in rows], _judge)
    if own is None or start is None:
        return None
    pairs = zip(own, start, strict=True)
    return tally(_ids(rows), [outcome(mine, theirs, tie_margin=tie_margin) for mine, theirs in pairs])


def _values(rows: Sequence[Judged], what: Callable[[Judged], float | None]) -> list[float] | None:
    """The value of each row; None where nobody was asked."""
    values = [value for value in map(what, rows) if value is not None]
    return values if len(values) == len(rows) else None


def _ids(rows: Sequence[Judged]) -> list[str]:
    return [row.id for row in rows]


def _gold(row: Judged) -> float | None:
    return row.gold


def _score(row: Judged) -> float | None:
    return row.score


def _proxy(row: Judged) -> float | None:
    return row.proxy


def _judge(row: Judged) -> float | None:
    return row.judge
