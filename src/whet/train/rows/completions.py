"""Log-probs of whole completions, and passes that keep the rows of a unit together."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whet.batching import collate, packed, take, tokens_that_fit
from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import read_tokens
from whet.models.protocol import CausalLM
from whet.records import Row, Sampling, Sequences

PLAIN = Sampling(max_tokens=1)  # temperature 1, nothing cut off: the model's own distribution


def stacked(rows: list[Row], world: World) -> Sequences:
    """Rows as tensors on this process's device."""
    return collate([row.tokens for row in rows], [row.mask for row in rows], world.device)


def whole_units(sequences: Sequences, size: int, settings: UpdateConfig, policy: CausalLM) -> Iterator[Tensor]:
    """Rows of whole units, `size` rows each, one forward pass after the other; a unit that is too long comes alone."""
    most = settings.micro_batch_tokens or tokens_that_fit(policy)
    lengths = sequences.lengths.view(-1, size).amax(dim=1)
    order = torch.argsort(lengths, descending=True, stable=True)
    sizes = lengths[order].tolist()
    start = 0
    while start < len(sizes):
        count = max(1, most // (size * sizes[start]))
        units = order[start : start + count]
        yield (units[:, None] * size + torch.arange(size, device=units.device)).flatten()
        start += count


def summed_logprobs(
    policy: CausalLM, sequences: Sequences, rows: Tensor, size: int, settings: UpdateConfig, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(n,) log-prob of each of these rows' trained tokens together, and how many tokens these are."""
    s = take(sequences, rows)
    with autocast(device):
        reading = read_tokens(
            policy,
            s.tokens,
            s.lengths,
            s.mask,
            PLAIN,
            packing=packed(s, torch.div(rows, size, rounding_mode="floor"), settings),
        )
    return reading.logprobs.sum(dim=1), s.mask.sum(dim=1)
