"""Estimates of KL(policy ‖ reference) from tokens that the policy sampled, one value per token.

Schulman, "Approximating KL divergence" (2020). With d = log π − log π_ref, all have non-negative expectation under the
policy and are zero where the two agree. What their *gradients* estimate differs: see `kl_place` in the table.
"""

from __future__ import annotations

import torch
from torch import Tensor


def k1(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """d: unbiased, high variance, may be negative."""
    return logprobs - logprobs_ref


def k2(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """d²/2: biased, low variance; its gradient, on policy, is that of the true KL of each token."""
    return (logprobs - logprobs_ref).square() / 2


def k3(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """exp(−d) − 1 + d: unbiased, low variance, never negative; its gradient is that of KL(reference ‖ policy)."""
    d = logprobs - logprobs_ref
    return torch.expm1(-d) + d  # expm1: exp(−d) − 1 loses all digits for small d


def unbiased(logprobs: Tensor, logprobs_old: Tensor, logprobs_ref: Tensor) -> Tensor:
    """ρ·(exp(−d) − 1 + d), ρ = π/π_old: value and gradient are the true KL's, token by token. DeepSeek-V3.2 2025."""
    return (logprobs - logprobs_old).exp() * k3(logprobs, logprobs_ref)
