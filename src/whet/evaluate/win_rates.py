"""Win rates and paired gains against the start model. Plain Python.

Completions of one prompt are correlated, so intervals are over prompts: the values of a prompt, from several samples
and seeds, become one mean. They do not cover the variance between seeds, which the numbers per seed show.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from whet.evaluate.calibration import clustered
from whet.evaluate.statistics import Interval, mean_interval, wilson

WIN, TIE, LOSS = 1.0, 0.5, 0.0


def outcome(score: float, score_start: float, *, tie_margin: float = 0.0) -> float:
    """1 for a win, 0 for a loss, 0.5 for scores within the margin."""
    if abs(score - score_start) <= tie_margin:
        return TIE
    return WIN if score > score_start else LOSS


def tally(prompts: Sequence[str], outcomes: Sequence[float]) -> dict[str, Any]:
    """The win rate (ties count half), wins, ties and losses; `prompts` names the prompt of each comparison.

    Wilson's interval with as many trials as prompts. A prompt's mean outcome varies at most as a single win or loss
    would, so ties and several samples make the interval conservative.
    """
    shares = prompt_means(prompts, outcomes)
    counts = Counter(outcomes)
    rate = asdict(wilson(sum(shares.values()), len(shares)))
    return {"rate": rate, "wins": counts[WIN], "ties": counts[TIE], "losses": counts[LOSS]}


def prompt_means(prompts: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """Prompt → mean of its values, in order of appearance."""
    return {prompt: fmean(own) for prompt, own in clustered(prompts, values).items()}


def clustered_mean(prompts: Sequence[str], values: Sequence[float]) -> Interval:
    """Mean of the prompts' means, with Student's t interval over prompts."""
    return mean_interval(list(prompt_means(prompts, values).values()))


def paired_gain(own: Mapping[str, float], start: Mapping[str, float]) -> Interval:
    """Mean of own − start, paired by prompt so that the difficulty of prompts cancels."""
    if own.keys() != start.keys():
        raise ValueError("a paired difference needs the same prompts on both sides")
    return mean_interval([value - start[prompt] for prompt, value in own.items()])
