"""Log-probs of given tokens: the only place where tokens are shifted against logits.

The sampler and the trainer both come here for the distribution that a token is drawn from (`log_distribution`), so
a ratio of the two is exactly 1 for equal weights. The full (B, T, V) logits are never held: the head runs on the
trained positions only, a chunk at a time, and is run again in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.models.protocol import CausalLM
from whet.records import Sampling

CHUNK_ELEMENTS = 2**24  # logits held at a time: 64 MiB in fp32
CHUNK_ROWS = 512  # at least: each chunk adds a whole gradient of the head


def token_logprobs(
    model: CausalLM, tokens: Tensor, lengths: Tensor, mask: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Log-prob of tokens[b, t] given tokens[b, :t], and the entropy of that choice; both (B, T), 0 where mask is False.

    Differentiable in the log-probs; the entropy carries no gradient. Index 0 has no past and must not be masked in.
    """
    if bool(mask[:, 0].any()):
        raise AssertionError("token 0 has nothing before it that could predict it")
    rows, columns = mask.nonzero(as_tuple=True)
    states = model.hidden(tokens, lengths)[rows, columns - 1]  # the state before token t predicts token t
    logprobs, entropies = _chunked(model, states, tokens[rows, columns], sampling)
    zeros = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    return zeros.index_put((rows, columns), logprobs), zeros.index_put((rows, columns), entropies)


def _chunked(model: CausalLM, states: Tensor, targets: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    def piece(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        distribution = log_distribution(model.head(states), sampling, keep=targets)
        return distribution.gather(-1, targets[:, None])[:, 0], _entropy(distribution.detach())

    size = max(CHUNK_ROWS, CHUNK_ELEMENTS // model.vocab_size)
    if len(targets) <= size:
        return piece(states, targets)
    pieces = []
    for chunk, chunk_targets in zip(torch.split(states, size), torch.split(targets, size), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(piece, chunk, chunk_targets, use_reentrant=False))
        else:
            pieces.append(piece(chunk, chunk_targets))
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


def log_distribution(logits: Tensor, sampling: Sampling, *, keep: Tensor | None = None) -> Tensor:
    """(N, V) logits → (N, V) fp32 log-probs of the distribution that tokens are drawn from; −inf where cut off.

    `keep` (N,) names tokens that are known to have been drawn: rounding may not cut them off.
    """
    scaled = logits.float() / sampling.temperature
    kept = _kept(scaled, sampling)
    if kept is not None:
        if keep is not None:
            kept = kept.scatter(-1, keep[:, None], True)
        scaled = scaled.masked_fill(~kept, float("-inf"))
    return scaled.log_softmax(dim=-1)


def _kept(scaled: Tensor, sampling: Sampling) -> Tensor | None:
    """Which tokens survive top-k, then top-p, then min-p; None when nothing is cut off."""
    kept: Tensor | None = None
    with torch.no_grad():
        if 0 < sampling.top_k < scaled.shape[-1]:
            threshold = scaled.topk(sampling.top_k, dim=-1).values[:, -1:]
            kept = scaled >= threshold
        if sampling.top_p < 1:
            base = scaled if kept is None else scaled.masked_fill(~kept, float("-inf"))
            probabilities, order = base.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
            before = probabilities.cumsum(dim=-1) - probabilities
            nucleus = torch.zeros_like(scaled, dtype=torch.bool).scatter(-1, order, before < sampling.top_p)
            kept = nucleus if kept is None else kept & nucleus
        if sampling.min_p > 0:
            likely = scaled >= scaled.amax(dim=-1, keepdim=True) + torch.tensor(sampling.min_p).log().item()
            kept = likely if kept is None else kept & likely
    return kept


def _entropy(distribution: Tensor) -> Tensor:
    probabilities = distribution.exp()
    return -(probabilities * distribution.masked_fill(probabilities == 0, 0.0)).sum(dim=-1)
