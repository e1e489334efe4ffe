"""Rewards to advantages. `rewards` is (P, G): one row per prompt, one column per rollout of its group."""

from __future__ import annotations

from torch import Tensor


def raw(rewards: Tensor) -> Tensor:
    """A_i = R_i: no baseline. Williams 1992."""
    return rewards


def center(rewards: Tensor) -> Tensor:
    """A_i = R_i − mean(R): the group's mean, own reward included. Liu et al. 2025 (Dr. GRPO), §3."""
    return rewards - rewards.mean(dim=1, keepdim=True)


def leave_one_out(rewards: Tensor) -> Tensor:
    """A_i = R_i − mean of the other G−1 rewards of the group. Ahmadian et al. 2024, eq. 8."""
    group = rewards.shape[1]
    return (rewards - rewards.mean(dim=1, keepdim=True)) * (group / (group - 1))


def standardize(rewards: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """A_i = (R_i − mean(R)) / (std(R) + ε), std with Bessel's correction. Shao et al. 2024 (GRPO), §4.1.2."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # A group of equal rewards carries no signal. Rounding can leave 1e-8 in `centered`, and dividing that by a
    # deviation of 1e-8 would make noise look like an advantage of one, so equal rewards are set to exactly zero.
    equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return (centered / (rewards.std(dim=1, keepdim=True) + epsilon)).masked_fill(equal, 0.0)
