"""Cells as a user would write them in a file of their own."""

import torch
from torch import Tensor

from whet.algorithms.cells import per_sequence, per_token

NOT_A_FUNCTION = 3


def steep(logprobs: Tensor, advantages: Tensor, *, power: float = 1.0) -> Tensor:
    """−sign(A)·|A|^power·log π."""
    return -advantages.sign() * advantages.abs() ** power * logprobs


def regularised(logprobs: Tensor, logprobs_old: Tensor, logprobs_ref: Tensor, advantages: Tensor) -> Tensor:
    """−ρA + (log π − log π_ref)²."""
    return -(logprobs - logprobs_old).exp() * advantages + (logprobs - logprobs_ref).square()


def shortened(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−ρA/√T, T = tokens of the row: per token, though it reads the mask."""
    return -(logprobs - logprobs_old).exp() * advantages / mask.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


@per_sequence
def whole(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−exp(Σ_t log ρ_t)·A."""
    return -((logprobs - logprobs_old) * mask).sum(dim=1, keepdim=True).exp() * advantages


def over_half(rewards: Tensor) -> Tensor:
    """A = R − ½."""
    return rewards - 0.5


def above(rewards: Tensor, *, least: float = 0.0) -> Tensor:
    """Groups with a mean reward above `least`."""
    return rewards.mean(dim=1) > least


def differing(rewards: Tensor) -> Tensor:
    """Groups whose rewards differ."""
    return rewards.amax(dim=1) != rewards.amin(dim=1)


def scalar(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """One number instead of one per token."""
    return (-advantages * logprobs).mean()


def broken(rewards: Tensor) -> Tensor:
    """Fails."""
    return rewards[:, 99]


def misspelt(logprobs: Tensor, advantage: Tensor) -> Tensor:
    """Wants a term that is called otherwise."""
    return -advantage * logprobs


def with_default(logprobs: Tensor, advantages: Tensor, power: float = 1.0) -> Tensor:
    """Its option looks like a term."""
    return torch.zeros_like(logprobs) + power


@per_token
def over_values(rewards: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """A = R − V, of whole rollouts: no token's reward is asked for."""
    return (rewards.reshape(-1, 1) - values) * mask


def silently_per_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """A = R on every token, without saying that there is one for each."""
    return rewards.reshape(-1, 1) * mask
