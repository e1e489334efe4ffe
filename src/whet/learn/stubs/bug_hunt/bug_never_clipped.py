"""Exercise 16, bug hunt: with four epochs per rollout training is unstable, and clip_fraction is 0 all the time.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-never-clipped`.
"""

import torch
from torch import Tensor


def policy_loss(logprobs: Tensor, logprobs_old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Tensor:
    """PPO's clipped loss, the mean over the trained tokens; `logprobs_old` are those of the policy that sampled."""
    ratio = (logprobs - logprobs.detach()).exp()
    worse = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(worse * mask).sum() / mask.sum()
