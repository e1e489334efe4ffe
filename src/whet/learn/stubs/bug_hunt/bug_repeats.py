"""Exercise 14, bug hunt: the loss falls to 0 within minutes, and every sample is one token again and again.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-repeats`.
"""

from torch import Tensor


def language_model_loss(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean of −log p of every trained token, given those before it: one number.

    `logits` is (rows, tokens, vocabulary); the logits at a place are computed from the tokens up to it, its own
    included. `tokens` and `mask` are (rows, tokens); where the mask is True, the token is trained.
    """
    logprobs = logits.log_softmax(dim=-1).gather(2, tokens[:, :, None])[:, :, 0]
    return -(logprobs * mask).sum() / mask.sum()
