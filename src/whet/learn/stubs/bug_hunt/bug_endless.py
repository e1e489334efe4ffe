"""Exercise 15, bug hunt: after supervised fine-tuning no answer ever ends; all run into the limit of tokens.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-endless`.
"""

import torch
from torch import Tensor

END = 0  # the id that ends a text; rows are padded with it too


def completion_mask(tokens: Tensor, prompt_lengths: Tensor, lengths: Tensor) -> Tensor:
    """True for the tokens that are trained: the completions, with their ends, without prompts and padding.

    `tokens` is (rows, tokens). A row has `lengths` tokens, of which the first `prompt_lengths` are its prompt.
    """
    places = torch.arange(tokens.shape[1])
    return (places >= prompt_lengths[:, None]) & (tokens != END)
