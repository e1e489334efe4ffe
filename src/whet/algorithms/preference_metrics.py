"""What to look at while preferences are learned. Values are per pair, so that they add over micro-batches and ranks."""

from __future__ import annotations

import torch
from torch import Tensor


def wins(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(P,): 1 where the chosen has more reward, ½ where both have the same, 0 otherwise; their mean is the accuracy.

    A tie is half: at the first step policy and reference agree, and a coin would be right as often.
    """
    return ((chosen > rejected).to(chosen.dtype) + (chosen >= rejected).to(chosen.dtype)) / 2


def margins(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(P,): by how much the chosen has more reward."""
    return chosen - rejected


def separation(rewards: Tensor, labels: Tensor) -> Tensor:
    """How often a desirable completion has more reward than an undesirable one, over all pairs of them; a tie is half.

    The area under the ROC curve. NaN where one of the kinds is missing.
    """
    good, bad = rewards[labels], rewards[~labels].sort().values
    below = torch.searchsorted(bad, good, side="left")
    not_above = torch.searchsorted(bad, good, side="right")
    return (below + not_above).to(rewards.dtype).mean() / (2 * len(bad)) if len(bad) else rewards.new_tensor(torch.nan)


def length_drift(tokens: Tensor, tokens_before: Tensor) -> Tensor:
    """By which share completions have become longer (above 0) or shorter than they were: mean(T)/mean(T_before) − 1."""
    return tokens.float().mean() / tokens_before.float().mean().clamp(min=1) - 1


def length_correlation(margins: Tensor, chosen_tokens: Tensor, rejected_tokens: Tensor) -> Tensor:
    """Pearson's correlation of margins with differences of length: near 1, longer is all that was learned.

    0 where margins or differences are all the same.
    """
    x, y = margins.double(), (chosen_tokens - rejected_tokens).double()
    x, y = x - x.mean(), y - y.mean()
    spread = (x.square().sum() * y.square().sum()).sqrt()
    return torch.where(spread > 0, (x * y).sum() / spread, 0.0).to(margins.dtype)
