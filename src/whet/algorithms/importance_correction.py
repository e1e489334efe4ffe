"""Weights for tokens that another distribution sampled: ρ = π_old / π_sampler, from log-probs of the same tokens.

π_old is the trainer's policy at the start of the step; a sampler with other kernels, another precision or older weights
is not quite it. All tensors are (B, T); a sequence's weight stands on every token of its row, and is 0 off the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uncorrected(mask: Tensor) -> Tensor:
    """1: the sampler is taken for the policy."""
    return mask.float()


def token_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(ρ_t, high). Yao et al. 2025."""
    return token_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def sequence_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(Π_t ρ_t, high). Liu & Li 2025."""
    return sequence_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def geometric_truncate(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, high: float = 2.0) -> Tensor:
    """min(exp(mean_t log ρ_t), high). Liu & Li 2025."""
    return geometric_weights(logprobs_old, logprobs_sampled, mask).clamp(max=high)


def token_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 5.0
) -> Tensor:
    """ρ_t inside [low, high], else 0. Ling Team 2025 (IcePop)."""
    return _inside(token_weights(logprobs_old, logprobs_sampled, mask), low, high)


def sequence_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 3.0
) -> Tensor:
    """Π_t ρ_t inside [low, high], else 0. Liu & Li 2025."""
    return _inside(sequence_weights(logprobs_old, logprobs_sampled, mask), low, high)


def geometric_mask(
    logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor, *, low: float = 0.99, high: float = 1.01
) -> Tensor:
    """exp(mean_t log ρ_t) inside [low, high], else 0. Liu & Li 2025."""
    return _inside(geometric_weights(logprobs_old, logprobs_sampled, mask), low, high)


def token_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """ρ_t."""
    return ((logprobs_old - logprobs_sampled) * mask).exp() * mask


def sequence_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """Π_t ρ_t: the only weight under which the gradient of a whole sequence is unbiased."""
    total = ((logprobs_old - logprobs_sampled) * mask).sum(dim=1, keepdim=True)
    return torch.where(mask, total.exp(), 0.0)  # not `* mask`: a long row can reach inf, and inf · 0 is not 0


def geometric_weights(logprobs_old: Tensor, logprobs_sampled: Tensor, mask: Tensor) -> Tensor:
    """exp(mean_t log ρ_t): does not shrink or grow with the length."""
    total = ((logprobs_old - logprobs_sampled) * mask).sum(dim=1, keepdim=True)
    return torch.where(mask, (total / mask.sum(dim=1, keepdim=True).clamp(min=1)).exp(), 0.0)


def effective_share(weights: Tensor) -> float:
    """(Σw)² / (n·Σw²), the effective sample size over n weights: 1 if all are equal, 0 if all are 0. Kong 1992."""
    if weights.numel() == 0:
        return 1.0
    exact = weights.double()
    # Divided by the largest, because squares overflow; beside an infinite weight the finite ones are nothing.
    heavy = exact.isinf().double() if bool(exact.isinf().any()) else exact / exact.max()
    return float(heavy.sum().square() / (heavy.numel() * heavy.square().sum())) if bool(exact.any()) else 0.0


def _inside(weights: Tensor, low: float, high: float) -> Tensor:
    return torch.where((weights >= low) & (weights <= high), weights, 0.0)
