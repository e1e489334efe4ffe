"""Which token comes next: the inverse transform of one random number a token.

The definition is `_draw_exactly`: the first token whose cumulative probability, summed in fp64 over the fp32
log-probs of `log_distribution`, exceeds the random number. `draw` finds the same token from fp32 probabilities, and
asks the definition only about rows whose random number lies so near to a token's edge that rounding could decide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.models.logprobs import log_distribution
from whet.records import Sampling
from whet.streams import uniform

BLOCK = 256  # tokens whose probabilities are summed at once to find the neighbourhood of a token
QUICK_FROM = 4096  # tokens of a vocabulary: below, the definition is as fast
# How far an fp32 sum of probabilities may be from the fp64 one. Each log-prob is rounded by at most |log p| · 2⁻²⁴,
# which makes at most (entropy + a few) · 2⁻²⁴ < 2e-6 of the whole for 2¹⁸ tokens; exp and the sums add less.
DOUBT = 5e-6


def draw(logits: Tensor, sampling: Sampling, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row of (N, V) logits, and its log-prob under the distribution that it was drawn from.

    Where a logit is NaN or +inf, or all are −inf, the log-prob is NaN; logits of −inf beside finite ones are fine.
    """
    if sampling.temperature == 0:
        chosen = logits.argmax(dim=-1)
        highest = logits.gather(-1, chosen[:, None])[:, 0].float()
        return chosen, highest - highest  # 0, or NaN where the highest is not finite: NaN is highest of all
    numbers = uniform(keys, positions)
    if not sampling.is_whole or logits.device.type != "cpu" or logits.shape[-1] < QUICK_FROM:
        return _draw_exactly(log_distribution(logits, sampling), numbers)
    scaled = logits.float() if sampling.temperature == 1 else logits.float() / sampling.temperature
    probabilities = scaled.softmax(dim=-1)
    chosen, is_doubtful, total = _draw_quickly(probabilities, numbers)
    if bool(is_doubtful.any()):
        rows = is_doubtful.nonzero()[:, 0]
        chosen[rows], _ = _draw_exactly(log_distribution(logits[rows], sampling), numbers[rows])
    # Divided by what they really add up to: over a large vocabulary torch's own sum is off by up to 1e-5.
    return chosen, (probabilities.gather(-1, chosen[:, None])[:, 0] / total).log().float()


def _draw_exactly(distribution: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: (N, V) log-probs, (N,) numbers in [0, 1) → tokens and their log-probs."""
    # In fp64 the sum over a large vocabulary keeps its digits.
    cumulative = distribution.double().exp().cumsum(dim=-1)
    target = numbers[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=distribution.shape[-1] - 1)
    return chosen[:, 0], distribution.gather(-1, chosen)[:, 0]


def _draw_quickly(probabilities: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, V) fp32 probabilities → tokens, whether rounding could have decided them, and the sums of the rows."""
    vocabulary = probabilities.shape[-1]
    whole = vocabulary // BLOCK * BLOCK
    sums = probabilities[:, :whole].reshape(len(probabilities), whole // BLOCK, BLOCK).sum(dim=-1).double()
    rest = probabilities[:, whole:].sum(dim=-1, keepdim=True).double()
    edges = torch.cat((torch.zeros_like(rest), sums, rest), dim=-1).cumsum(dim=-1)  # where each block begins; the end
    target = numbers[:, None] * edges[:, -1:]
    block = torch.searchsorted(edges, target, right=True).clamp(max=edges.shape[-1] - 1) - 1
    places = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, places.clamp(max=vocabulary - 1)).double().masked_fill(places >= vocabulary, 0.0)
    cumulative = torch.cat((edges.gather(-1, block), inside), dim=-1).cumsum(dim=-1)
    index = torch.searchsorted(cumulative, target, right=True).clamp(min=1, max=BLOCK)
    below, above = cumulative.gather(-1, index - 1), cumulative.gather(-1, index)
    doubt = DOUBT * edges[:, -1:]
    is_doubtful = ~((target - below >= doubt) & (above - target >= doubt))  # also where something is not a number
    return places.gather(-1, index - 1)[:, 0], is_doubtful[:, 0], edges[:, -1]
