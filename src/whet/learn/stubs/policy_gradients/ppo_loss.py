"""Exercise 9: PPO's clipped loss.

Chapter: docs/learn/09-ppo.md. Replace every `raise NotImplementedError`; then `whet learn check ppo-loss`.
All tensors are (rows, tokens); where the mask is True, a token is trained.
"""

from torch import Tensor


def ppo_loss(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Tensor:
    """The mean of −min(ρA, clip(ρ)·A) over the trained tokens: one number.

    ρ = π/π_old, and clip(ρ) is ρ kept within 1 − clip and 1 + clip.
    """
    raise NotImplementedError


def clip_fraction(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Tensor:
    """The share of the trained tokens whose ratio lies outside of the range: one number."""
    raise NotImplementedError
