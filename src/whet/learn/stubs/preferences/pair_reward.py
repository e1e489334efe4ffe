"""Exercise 12: the Bradley-Terry loss.

Chapter: docs/learn/14-reward-models.md. Replace every `raise NotImplementedError`; then `whet learn check pair-reward`.
`chosen` and `rejected` are (pairs,): a reward model's scores of the two answers of each pair.
"""

from torch import Tensor


def win_probability(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The probability, by Bradley and Terry, that the chosen answer is preferred: (pairs,)."""
    raise NotImplementedError


def preference_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The mean of −log of that probability: one number."""
    raise NotImplementedError


def pair_accuracy(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The share of pairs whose chosen answer has the higher score; a tie counts as half: one number."""
    raise NotImplementedError
