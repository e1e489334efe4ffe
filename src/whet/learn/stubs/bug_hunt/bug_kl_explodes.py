"""Exercise 17, bug hunt: the KL penalty has spikes of a hundred nats, and the policy runs away from the reference.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-kl-explodes`.
"""

import torch
from torch import Tensor


def kl_penalty(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """The estimate k3 of KL(π‖ref), one number for every token that the policy sampled: unbiased, never negative."""
    difference = logprobs - logprobs_ref
    return torch.expm1(difference) - difference
