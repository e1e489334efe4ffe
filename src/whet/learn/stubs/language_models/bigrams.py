"""Exercise 1: a language model that is a table.

Chapter: docs/learn/01-bigrams.md. Replace every `raise NotImplementedError`; then `whet learn check bigrams`.
"""

from torch import Tensor


def bigram_counts(ids: Tensor, size: int) -> Tensor:
    """How often each token follows each other one: (size, size), the row is the token before, the column the one after.

    `ids` is (n,), whole numbers below `size`.
    """
    raise NotImplementedError


def next_probabilities(counts: Tensor, smoothing: float) -> Tensor:
    """The distribution of the next token for every token: (size, size), where `smoothing` is added to every count."""
    raise NotImplementedError


def mean_loss(probabilities: Tensor, ids: Tensor) -> Tensor:
    """The mean of −log p (natural logarithm) over all tokens that have one before them: one number."""
    raise NotImplementedError


def sample(probabilities: Tensor, first: int, uniforms: Tensor) -> list[int]:
    """A text that begins with `first`, and has one more token for every number u of `uniforms`, 0 ≤ u < 1.

    The next token is the first one for which the probabilities up to it, its own included, add up to more than u.
    """
    raise NotImplementedError
