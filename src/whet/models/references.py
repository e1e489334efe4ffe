"""Reference policies for the KL penalty that are not models: uniform, and bigram counts.

They implement `hidden` and `head` of a decoder, so `logprobs.read_tokens` works on them. The state of a token is its
id, because neither looks further back.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from whet.errors import UserError
from whet.models.layers.packing import Packing

BIGRAM_LARGEST = 8192  # vocabulary: the table has its square


class _ByToken:
    head_weight = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002 - the protocol's
        """(B, T) ids → (B, T, 1): the id."""
        return tokens[..., None].double()

    def hidden_packed(self, packing: Packing) -> Tensor:
        """→ (N, 1)."""
        return self.hidden(packing.tokens, packing.roots)


class Uniform(_ByToken):
    """All tokens are equally likely."""

    def head(self, hidden: Tensor) -> Tensor:
        """(N, 1) → (N, V): equal logits."""
        return torch.zeros(*hidden.shape[:-1], self.vocab_size, device=hidden.device)


class Bigram(_ByToken):
    """Bigram frequencies of some text with add-one (Laplace) smoothing: P(b | a) = (n_ab + 1) / (Σ_b n_ab + V)."""

    def __init__(self, sequences: Iterable[Sequence[int]], vocab_size: int) -> None:
        if vocab_size > BIGRAM_LARGEST:
            raise UserError(
                f"algorithm.kl.reference is bigram and the vocabulary has {vocab_size} tokens: its table would have "
                f"their square; use a tokeniser with at most {BIGRAM_LARGEST}, or reference: start"
            )
        super().__init__(vocab_size)
        counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64)  # fp32 cannot count beyond 2²⁴
        for sequence in sequences:
            ids = torch.tensor(sequence, dtype=torch.int64)
            counts.index_put_((ids[:-1], ids[1:]), counts.new_ones(max(0, len(ids) - 1)), accumulate=True)
        self.log_table = (counts / counts.sum(dim=1, keepdim=True)).log().float()

    def head(self, hidden: Tensor) -> Tensor:
        """(N, 1) → (N, V): log-probs are logits."""
        self.log_table = self.log_table.to(hidden.device)  # once
        return self.log_table[hidden[..., 0].long()]
