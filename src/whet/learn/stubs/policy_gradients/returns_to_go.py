"""Exercise 6: returns-to-go.

Chapter: docs/learn/06-reinforce.md. Replace the `raise NotImplementedError`; then `whet learn check returns-to-go`.
"""

from torch import Tensor


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = Σ_{s≥t} γ^(s−t)·r_s for every token: (rows, tokens), 0 at padding.

    `rewards` and `mask` are (rows, tokens). The mask is True for tokens; padding stands at the end of a row, and
    whatever number `rewards` has there counts for nothing.
    """
    raise NotImplementedError
