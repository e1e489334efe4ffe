"""Exercise 10: advantages in a group, and the average over tokens.

Chapter: docs/learn/10-grpo.md. Replace every `raise NotImplementedError`; then `whet learn check group-advantages`.
"""

from torch import Tensor


def grpo_advantages(rewards: Tensor) -> Tensor:
    """(r − mean) / (std + 1e-6), mean and std (with n − 1) of the group: (prompts, group), one row per prompt."""
    raise NotImplementedError


def dr_grpo_advantages(rewards: Tensor) -> Tensor:
    """r − mean of the group, without the deviation: (prompts, group)."""
    raise NotImplementedError


def token_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """The mean of (rows, tokens) losses over all tokens where the mask is True: every token has one vote."""
    raise NotImplementedError


def sequence_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """The mean over the rows of the mean of each row's tokens where the mask is True: every row has one vote."""
    raise NotImplementedError
