"""Exercise 11: estimators of KL(π‖ref).

Chapter: docs/learn/11-kl.md. Replace every `raise NotImplementedError`; then `whet learn check kl-estimators`.
The first three take log-probs of tokens that the policy π sampled, and give one number per token.
"""

from torch import Tensor


def k1(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """Unbiased; may be negative."""
    raise NotImplementedError


def k2(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """Half the square of the log ratio."""
    raise NotImplementedError


def k3(logprobs: Tensor, logprobs_ref: Tensor) -> Tensor:
    """Unbiased, and never negative."""
    raise NotImplementedError


def exact_kl(logits: Tensor, logits_ref: Tensor) -> Tensor:
    """KL(π‖ref) of two distributions over the whole vocabulary, (vocabulary,) logits each: one number."""
    raise NotImplementedError
