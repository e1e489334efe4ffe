"""Win rates and paired gains against the start model. Plain Python.

Completions of one prompt are correlated, so intervals are over prompts: the values of a prompt, from several samples
and seeds, become one mean. They do not cover the variance between seeds, which the numbers per seed show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from whet.evaluate.statistics import Interval, mean_interval, wilson

Choice = Literal["first", "second", "tie", "unreadable"]  # by a pairwise judge, of two answers in order
WIN, TIE, LOSS = 1.0, 0.5, 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WinTally:
    """Comparisons with the start model's completion of the same prompt."""

    rate: Interval  # ties count half; Wilson's interval over prompts
    wins: int
    ties: int
    losses: int


def outcome(score: float, score_start: float, *, tie_margin: float = 0.0) -> float:
    """1 for a win, 0 for a loss, 0.5 for scores within the margin."""
    if abs(score - score_start) <= tie_margin:
        return TIE
    return WIN if score > score_start else LOSS


def outcome_of_both_orders(own_first: Choice, own_second: Choice) -> float:
    """The outcome for our answer when the judge sees it first, and then second.

    Contradictory choices (position bias) and unreadable ones are ties.
    """
    if (own_first, own_second) == ("first", "second"):
        return WIN
    if (own_first, own_second) == ("second", "first"):
        return LOSS
    return TIE


def tally(prompts: Sequence[str], outcomes: Sequence[float]) -> WinTally:
    """Wins, ties and losses; `prompts` names the prompt of each comparison.

    Wilson's interval with as many trials as prompts. A prompt's mean outcome varies at most as a single win or loss
    would, so ties and several samples make the interval conservative.
    """
    shares = prompt_means(prompts, outcomes)
    return WinTally(
        rate=wilson(sum(shares.values()), len(shares)),
        wins=sum(value == WIN for value in outcomes),
        ties=sum(value == TIE for value in outcomes),
        losses=sum(value == LOSS for value in outcomes),
    )


def prompt_means(prompts: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Prompt → mean of its values, in order of appearance."""
    together: defaultdict[str, list[float]] = defaultdict(list)
    for prompt, value in zip(prompts, values, strict=True):
        together[prompt].append(value)
    return {prompt: fmean(own) for prompt, own in together.items()}


def clustered_mean(prompts: Sequence[str], values: Sequence[float]) -> Interval:
    """Mean of the prompts' means, with Student's t interval over prompts."""
    return mean_interval(list(prompt_means(prompts, values).values()))


def paired_gain(own: Mapping[str, float], start: Mapping[str, float]) -> Interval:
    """Mean of own − start, paired by prompt so that the difficulty of prompts cancels."""
    if own.keys() != start.keys():
        raise ValueError("a paired difference needs the same prompts on both sides")
    return mean_interval([value - start[prompt] for prompt, value in own.items()])
