"""Reward shaping: penalties and normalisation between the score and the advantage, on (P, G) tensors of all ranks."""

from __future__ import annotations

import torch
from torch import Tensor


def overlong(counts: Tensor, *, max_tokens: int, ramp: int) -> Tensor:
    """0 down to −1 over the last `ramp` tokens before `max_tokens`. Yu et al. 2025 (DAPO), eq. 13."""
    return ((max_tokens - ramp - counts) / ramp).clamp(-1.0, 0.0)


def standard(rewards: Tensor, mean: float, deviation: float, *, epsilon: float = 1e-8) -> Tensor:
    """(R − mean) / (deviation + ε); 0 where there is no deviation."""
    return (rewards - mean) / (deviation + epsilon) if deviation > 0 else torch.zeros_like(rewards)


def moments(rewards: Tensor) -> tuple[int, float, float]:
    """Count, sum and sum of squares: they add over steps."""
    exact = rewards.double()
    return rewards.numel(), float(exact.sum()), float(exact.square().sum())


def mean_and_deviation(count: float, total: float, squares: float) -> tuple[float, float]:
    """The mean and the standard deviation of what was added up."""
    mean = total / max(1.0, count)
    return mean, max(0.0, squares / max(1.0, count) - mean * mean) ** 0.5
