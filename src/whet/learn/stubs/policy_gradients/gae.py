"""Exercise 8: generalised advantage estimation.

Chapter: docs/learn/08-gae.md. Replace every `raise NotImplementedError`; then `whet learn check gae`.
All tensors are (rows, tokens). The mask is True for tokens; padding stands at the end of a row, and whatever `rewards`
and `values` have there counts for nothing. A row ends after its last token: what follows is worth 0.
"""

from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = Σ_k (γλ)^k·δ_{t+k} with δ_t = r_t + γ·V_{t+1} − V_t; 0 at padding."""
    raise NotImplementedError


def value_targets(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """What the critic is trained towards: the advantage plus the value that it was measured from; 0 at padding."""
    raise NotImplementedError
