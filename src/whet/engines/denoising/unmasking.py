"""Iterative unmasking: the hidden tokens of a text are predicted all at once and revealed a few at a time.

Two orders. `random` is the ancestral sampler of masked diffusion with the linear schedule (Sahoo et al. 2024; Shi et
al. 2024): from time t to s = t − 1/steps every hidden token is revealed with probability (α_s − α_t)/(1 − α_t), which
is 1 over the steps that are left. `confidence` reveals the tokens that the model is surest of, as many in every step
(MaskGIT, Chang et al. 2022). Tokens of the same step are drawn independently of each other: the more steps, the nearer
to the process whose likelihood is bounded.

Letters: B rows, T time, N tokens that are predicted.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whet.engines.native.native_engine import draw
from whet.models.finite import not_finite
from whet.models.masked_logprobs import mask_id, masked_logits
from whet.models.protocol import CausalLM
from whet.records import Sampling
from whet.streams import uniform

ORDERS = ("random", "confidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmasking:
    """How hidden tokens are revealed."""

    order: str = "random"  # one of ORDERS
    steps: int | None = None  # None: as many as tokens are hidden


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """Texts whose wanted tokens are all revealed."""

    tokens: Tensor  # (B, T)
    steps: Tensor  # (B, T): the step that revealed a token, from 1 on; 0: it was given or is not wanted


@torch.no_grad()
def fill(model: CausalLM, tokens: Tensor, wanted: Tensor, keys: Tensor, sampling: Sampling, how: Unmasking) -> Filled:
    """Reveals the `wanted` (B, T) tokens, a part of those that are masked; the others stay as they are.

    `keys` (B,) name the rows' random streams: a row's result depends on its own key and not on the batch.
    """
    assert bool((tokens[wanted] == mask_id(model)).all()), "a token that is given is never revealed"
    tokens, revealed = tokens.clone(), torch.zeros_like(tokens)
    counts = wanted.sum(dim=1)
    steps = counts if how.steps is None else torch.full_like(counts, how.steps)
    if how.order == "confidence":
        steps = torch.minimum(steps, counts)  # at least one token in every step
    lengths = torch.full_like(counts, tokens.shape[1])
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    for step in range(int(steps.max()) if len(steps) else 0):
        places = 2 * step * len(columns) + columns  # of the stream: those that decide about tokens, then their values
        hidden = wanted & (revealed == 0) & (step < steps)[:, None]
        now = hidden
        if how.order == "random":
            now = hidden & (uniform(keys[:, None], places) * (steps - step)[:, None] < 1)
        ids, logprobs = _drawn(model, tokens, lengths, now, keys, places + len(columns), sampling)
        if how.order == "confidence":
            kept = counts * (steps - step - 1) // steps.clamp(min=1)  # tokens that stay hidden
            now = _surest(now, logprobs, hidden.sum(dim=1) - kept)
        tokens = torch.where(now, ids, tokens)
        revealed = revealed.masked_fill(now, step + 1)
    return Filled(tokens=tokens, steps=revealed)


def _drawn(
    model: CausalLM, tokens: Tensor, lengths: Tensor, hidden: Tensor, keys: Tensor, places: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """(B, T): a token for each hidden one, and its log-prob under the model; the prediction is of all at once."""
    rows, columns = hidden.nonzero(as_tuple=True)
    ids, logprobs = tokens.clone(), torch.full(tokens.shape, -torch.inf, device=tokens.device)
    for part, logits in masked_logits(model, tokens, lengths, hidden):
        chosen, found = draw(logits, sampling, keys[rows[part]], places[columns[part]])
        if not bool(found.isfinite().all()):
            raise not_finite("the model's logits are not finite at a masked token", model)
        ids[rows[part], columns[part]] = chosen
        logprobs[rows[part], columns[part]] = logits.log_softmax(dim=-1).gather(-1, chosen[:, None])[:, 0]
    return ids, logprobs


def _surest(hidden: Tensor, logprobs: Tensor, counts: Tensor) -> Tensor:
    """(B, T): the `counts` (B,) likeliest of the hidden tokens; of equally likely ones the first."""
    order = logprobs.masked_fill(~hidden, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return hidden & (ranks < counts[:, None])
