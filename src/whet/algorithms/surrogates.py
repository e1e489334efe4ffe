"""Log-probs and advantages to a loss per token. All tensors are (B, T); nothing is summed here."""

from __future__ import annotations

import torch
from torch import Tensor


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """−A·log π. Williams 1992."""
    return -advantages * logprobs


def clip(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    """−min(ρA, clip(ρ, 1−low, 1+high)·A), ρ = π/π_old. Schulman et al. 2017, eq. 7."""
    ratio = (logprobs - logprobs_old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
