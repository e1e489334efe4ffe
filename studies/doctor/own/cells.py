"""Surrogates and advantages with a mistake."""

from torch import Tensor


def flipped(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor) -> Tensor:
    """+ρA: a minus is missing."""
    return (logprobs - logprobs_old).exp() * advantages


def repelled(logprobs: Tensor, logprobs_old: Tensor, logprobs_ref: Tensor, advantages: Tensor) -> Tensor:
    """−ρA − (log π_ref − log π)²: the penalty is subtracted, so the policy is pushed away from the reference."""
    return -(logprobs - logprobs_old).exp() * advantages - (logprobs_ref - logprobs).square()


def unclipped(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor) -> Tensor:
    """−ρA without clipping."""
    return -(logprobs - logprobs_old).exp() * advantages


def below_mean(rewards: Tensor) -> Tensor:
    """mean(R) − R: the baseline and the reward are exchanged."""
    return rewards.mean(dim=1, keepdim=True) - rewards
