"""Exercise 4: the loss of a language model.

Chapter: docs/learn/04-language-modelling.md. Replace the `raise NotImplementedError`; then
`whet learn check next-token`.
"""

from torch import Tensor


def next_token_loss(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean of −log p over all trained tokens of the batch: one number.

    `logits` is (rows, tokens, vocabulary): what the model says at a place, after it has read the token there, of the
    token that follows. `tokens` and `mask` are (rows, tokens); where the mask is True, the token is trained. The first
    token of a row is predicted by nothing, so it is not in the mean, whatever the mask says.
    """
    raise NotImplementedError
