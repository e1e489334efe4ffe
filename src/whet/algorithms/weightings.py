"""Loss aggregation: the weight of each trained token. A weighting sees the mask, never the loss.

Each returns (B, T) weights and a count. Counts are summed over micro-batches and ranks, the weights are divided by
that sum once, and from then on every loss is (per_token · weights).sum(): splits, padding and ranks just add.
"""

from __future__ import annotations

from torch import Tensor


def token_mean(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{i,t} / number of tokens: every token has one vote. Yu et al. 2025 (DAPO), eq. 8."""
    return mask.float(), mask.sum()


def sequence_mean(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i (1/T_i) Σ_t / number of sequences: every sequence has one vote. Shao et al. 2024 (GRPO), eq. 3."""
    return mask / mask.sum(dim=1, keepdim=True).clamp(min=1), mask.any(dim=1).sum()


def sequence_sum(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_i Σ_t / number of sequences: the log-prob of a sequence is the sum over its tokens. Williams 1992."""
    return mask.float(), mask.any(dim=1).sum()


def budget_mean(mask: Tensor, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Σ_i Σ_t / (number of sequences × max_tokens): a constant, so length is not rewarded. Liu et al. 2025, §3."""
    return mask.float() / max_tokens, mask.any(dim=1).sum()
