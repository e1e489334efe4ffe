"""Exercise 7: baselines and variance.

Chapter: docs/learn/07-baselines.md. Replace every `raise NotImplementedError`; then `whet learn check baselines`.
The bandit is that of exercise 5: a softmax over `logits` (actions,), and action a pays `rewards[a]`. The estimate of
its gradient from one sampled action a is (rewards[a] − baseline)·∇log π(a).
"""

from torch import Tensor


def leave_one_out(rewards: Tensor) -> Tensor:
    """Each reward less the mean of the others of its group: (prompts, group), one row per prompt."""
    raise NotImplementedError


def gradient_variance(logits: Tensor, rewards: Tensor, baseline: float) -> Tensor:
    """The variance of the estimate, summed over the entries of the gradient, by enumeration of the actions."""
    raise NotImplementedError


def best_baseline(logits: Tensor, rewards: Tensor) -> Tensor:
    """The one number that, as a baseline, makes this variance least."""
    raise NotImplementedError
