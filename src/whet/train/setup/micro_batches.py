"""Micro-batches: which rows a model reads in one forward pass. They bound memory and never change a result."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whet.batching import micro_batches, packed_batches
from whet.config.parts import UpdateConfig
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing, pack
from whet.models.protocol import CausalLM
from whet.records import Sequences

FEW, MANY = 4096, 32_768  # tokens a pass: enough for a CPU, and enough for any GPU
MEMORY_SHARE = 0.2  # of a GPU, for what a pass keeps for its gradient


def passes(sequences: Sequences, groups: Tensor, settings: UpdateConfig, policy: CausalLM) -> Iterator[Tensor]:
    """Rows of one forward pass after the other; rows of the same (B,) group have the same prompt."""
    tokens = settings.micro_batch_tokens or tokens_that_fit(policy)
    if settings.padding_free:
        return packed_batches(sequences, groups, tokens)
    return micro_batches(sequences.lengths, tokens)


def packed(s: Sequences, groups: Tensor | None, settings: UpdateConfig) -> Packing | None:
    """The packing of rows that are read together, unless they are to be padded."""
    return pack(s.tokens, s.mask, groups) if settings.padding_free else None


def tokens_that_fit(policy: CausalLM) -> int:
    """As many as a share of the GPU's memory holds the activations of."""
    device = next(policy.parameters()).device
    if device.type != "cuda" or not isinstance(policy, Decoder):
        return FEW
    total = torch.cuda.get_device_properties(device).total_memory
    return min(MANY, max(FEW, int(MEMORY_SHARE * total / kept_bytes(policy.config))))


def kept_bytes(c: DecoderConfig) -> int:
    """What a fused pass keeps of one token for its gradient."""
    streams = 8 * c.width  # fp32, before each half of a block; and around the final norm
    attention = 4 * (c.heads + c.kv_heads) * c.head_dim  # bf16: queries, keys, values and what they gave
    raw = 2 * (c.heads + 2 * c.kv_heads) * c.head_dim if c.qk_norm == "head" else 0
    return c.layers * (streams + attention + raw + 4 * c.mlp_width) + streams
