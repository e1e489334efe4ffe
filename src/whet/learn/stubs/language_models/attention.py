"""Exercise 3: causal self-attention.

Chapter: docs/learn/03-attention.md. Replace the `raise NotImplementedError`; then `whet learn check attention`.
Without `scaled_dot_product_attention`: that is the function to be written.
"""

from torch import Tensor


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """For every token the mean of the values up to it, weighted by the softmax of its scores with the keys.

    All are (heads, tokens, width), and so is the result. A score is a dot product divided by √width.
    """
    raise NotImplementedError
