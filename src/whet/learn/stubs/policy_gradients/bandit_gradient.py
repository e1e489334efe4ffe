"""Exercise 5: the policy gradient of a bandit.

Chapter: docs/learn/05-policy-gradients.md. Replace every `raise NotImplementedError`; then
`whet learn check bandit-gradient`. The policy is a softmax over `logits` (actions,), and action a pays `rewards[a]`.
Gradients are written out here: no autograd.
"""

from torch import Tensor


def expected_reward(logits: Tensor, rewards: Tensor) -> Tensor:
    """Σ_a π(a)·r(a): one number."""
    raise NotImplementedError


def score(logits: Tensor, action: int) -> Tensor:
    """The gradient of log π(action) by the logits: (actions,)."""
    raise NotImplementedError


def policy_gradient(logits: Tensor, rewards: Tensor) -> Tensor:
    """The gradient of the expected reward by the logits, as a sum over all actions: (actions,)."""
    raise NotImplementedError


def estimate(logits: Tensor, rewards: Tensor, actions: Tensor) -> Tensor:
    """REINFORCE: an estimate of the same gradient from sampled `actions` (n,), without a baseline: (actions,)."""
    raise NotImplementedError
