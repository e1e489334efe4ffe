"""Who wins against the start model, and by how much: each prompt counts once, however often it was answered.

Answers to the same prompt resemble each other, so intervals are over prompts: the values of one prompt, from several
samples and seeds, become one mean. They say how far other prompts would move a number, for these very runs; what other
seeds would do is seen in the numbers of each seed. Plain Python; knows no models and no files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from whet.evaluate.statistics import Interval, mean_interval, wilson

Choice = Literal["first", "second", "tie", "unreadable"]  # what a pairwise judge says of two answers in an order
WIN, TIE, LOSS = 1.0, 0.5, 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Comparisons with the start model's completion of the same prompt."""

    rate: Interval  # share of comparisons won, ties half; Wilson's interval over prompts
    wins: int
    ties: int
    losses: int


def outcome(score: float, score_start: float, *, tie_margin: float = 0.0) -> float:
    """1 for a win, 0 for a loss, 0.5 where the scores are no further apart than the margin."""
    if abs(score - score_start) <= tie_margin:
        return TIE
    return WIN if score > score_start else LOSS


def outcome_of_both_orders(own_first: Choice, own_second: Choice) -> float:
    """What a judge that was asked twice says of our answer: first with it in front, then with it behind.

    A judge that likes the first place, whatever stands there, contradicts itself: a tie. So is what cannot be read.
    """
    if (own_first, own_second) == ("first", "second"):
        return WIN
    if (own_first, own_second) == ("second", "first"):
        return LOSS
    return TIE


def tally(prompts: Sequence[str], outcomes: Sequence[float]) -> Tally:
    """Wins, ties and losses, one prompt's name for each comparison.

    The interval is Wilson's with as many trials as prompts. A prompt's mean outcome lies in [0, 1] and so varies at
    most as a win or a loss would: ties and several samples make the interval too wide rather than too narrow.
    """
    shares = prompt_means(prompts, outcomes)
    return Tally(
        rate=wilson(sum(shares.values()), len(shares)),
        wins=sum(value == WIN for value in outcomes),
        ties=sum(value == TIE for value in outcomes),
        losses=sum(value == LOSS for value in outcomes),
    )


def prompt_means(prompts: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Prompt → mean of its values, in the order in which prompts first come."""
    together: defaultdict[str, list[float]] = defaultdict(list)
    for prompt, value in zip(prompts, values, strict=True):
        together[prompt].append(value)
    return {prompt: fmean(own) for prompt, own in together.items()}


def clustered_mean(prompts: Sequence[str], values: Sequence[float]) -> Interval:
    """Mean of the prompts' means, with Student's t interval over prompts."""
    return mean_interval(list(prompt_means(prompts, values).values()))


def paired_gain(own: Mapping[str, float], start: Mapping[str, float]) -> Interval:
    """Mean of own − start over prompts, both given as prompt → mean: the same prompts, so their difficulty cancels."""
    if own.keys() != start.keys():
        raise ValueError("a paired difference needs the same prompts on both sides")
    return mean_interval([value - start[prompt] for prompt, value in own.items()])
