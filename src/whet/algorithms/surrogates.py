"""Log-probs and advantages to a loss per token. All tensors are (B, T), one sequence per row; nothing is summed here.

A surrogate that is declared `per_sequence` has one ratio per row: every token carries the loss of the whole row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.algorithms.cells import per_sequence


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """−A·log π. Williams 1992."""
    return -advantages * logprobs


def clip(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    """−min(ρA, clip(ρ, 1−low, 1+high)·A), ρ = π/π_old. Schulman et al. 2017, eq. 7."""
    ratio = (logprobs - logprobs_old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def dual_clip(
    logprobs: Tensor,
    logprobs_old: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    bound: float = 3.0,
) -> Tensor:
    """−max(m, bound·A) if A < 0 else −m, m = min(ρA, clip(ρ, 1−low, 1+high)·A), ρ = π/π_old. Ye et al. 2019."""
    clipped = clip(logprobs, logprobs_old, advantages, low=low, high=high)
    return torch.where(advantages < 0, torch.minimum(clipped, -bound * advantages), clipped)


def stopped_ratio(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, low: float = 1.0, high: float = 4.0
) -> Tensor:
    """−sg(clip(ρ, 1−low, 1+high))·A·log π, ρ = π/π_old, sg stops the gradient. MiniMax 2025 (CISPO)."""
    ratio = (logprobs - logprobs_old).detach().exp()
    return -ratio.clamp(1 - low, 1 + high) * advantages * logprobs


def soft_gate(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, *, positive: float = 1.0, negative: float = 1.05
) -> Tensor:
    """−(4/τ)·σ(τ(ρ−1))·A, ρ = π/π_old, τ = positive if A > 0 else negative. SAPO, arXiv 2511.20347."""
    ratio = (logprobs - logprobs_old).exp()
    sharpness = torch.where(advantages > 0, positive, negative)
    return -(4 / sharpness) * torch.sigmoid(sharpness * (ratio - 1)) * advantages


@per_sequence
def sequence_clip(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, *, low: float = 3e-4, high: float = 4e-4
) -> Tensor:
    """−min(sA, clip(s, 1−low, 1+high)·A), s = exp(mean_t log ρ_t), ρ = π/π_old. Zheng et al. 2025 (GSPO)."""
    ratio = _sequence_mean(logprobs - logprobs_old, mask).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


@per_sequence
def geometric_clip(
    logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, *, low: float = 0.4, high: float = 0.4
) -> Tensor:
    """−wA, w = exp(mean_t c_t), c_t = min(log ρ_t, high) if A > 0 else max(log ρ_t, −low). GMPO, arXiv 2507.20673."""
    log_ratio = logprobs - logprobs_old
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))
    return -_sequence_mean(clipped, mask).exp() * advantages


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1): the mean over the trained tokens of each row."""
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
