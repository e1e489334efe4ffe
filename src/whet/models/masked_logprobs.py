"""Log-probs of masked tokens under a bidirectional model. Nothing is shifted: token i is predicted at position i.

The mask token is the model's last id. The head is read without it, so that the model gives all its probability to real
tokens (Sahoo et al. 2024). As in `logprobs.py` the head runs on the predicted positions only, a chunk at a time.

Letters: B rows, T time, N predicted tokens, D width, V vocabulary, the mask included.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from whet.models.logprobs import CPU_CHUNK, LEAST_ROWS, chosen_logprobs
from whet.models.protocol import CausalLM


def mask_id(model: CausalLM) -> int:
    """The id that stands for a hidden token."""
    return model.vocab_size - 1


def masked_logprobs(model: CausalLM, shown: Tensor, lengths: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """(B, T) log-probs of the targets where `chosen`, given the ids that are shown; 0 elsewhere. Differentiable."""
    zeros = torch.zeros(shown.shape, dtype=torch.float32, device=shown.device)
    if not bool(chosen.any()):
        return zeros
    place = chosen.nonzero(as_tuple=True)
    states, weight = model.hidden(shown, lengths)[place], model.head_weight
    assert weight is not None, "a bidirectional model is a decoder without adapters"
    logprobs, _ = chosen_logprobs(states, weight[: mask_id(model)], targets[place], 1.0)
    return zeros.index_put(place, logprobs)


@torch.no_grad()
def masked_likelihoods(
    model: CausalLM, shown: Tensor, lengths: Tensor, targets: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """(B,) sums over the chosen tokens of each row: of their log-probs, and of those that are the likeliest ones."""
    rows, ids = chosen.nonzero(as_tuple=True)[0], targets[chosen]
    logprobs = torch.zeros(len(shown), dtype=torch.float64, device=shown.device)
    hits = torch.zeros_like(logprobs)
    for part, logits in masked_logits(model, shown, lengths, chosen):
        found = logits.gather(-1, ids[part, None])[:, 0] - logits.logsumexp(dim=-1)
        logprobs.index_add_(0, rows[part], found.double())
        hits.index_add_(0, rows[part], (logits.argmax(dim=-1) == ids[part]).double())
    return logprobs, hits


@torch.no_grad()
def masked_logits(model: CausalLM, shown: Tensor, lengths: Tensor, chosen: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(n, V − 1) logits of some chosen tokens at a time, and which of the N they are, in the order of rows."""
    if not bool(chosen.any()):
        return
    states = model.hidden(shown, lengths)[chosen.nonzero(as_tuple=True)]
    size = max(LEAST_ROWS, CPU_CHUNK // model.vocab_size)
    for start in range(0, len(states), size):
        part = slice(start, start + size)
        yield part, model.head(states[part])[:, : mask_id(model)].float()
