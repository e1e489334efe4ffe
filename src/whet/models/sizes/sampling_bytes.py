"""Bytes of sampling with slots and CUDA graphs (`engines/native`): KV cache, rows of a step, prefill.

Letters: D width, M width of the MLP, V vocabulary, Q = heads · dim, KV = kv_heads · dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.models.sizes.pass_bytes import BF16, FP32, joined_width

if TYPE_CHECKING:
    from whet.models.layers.decoder_config import DecoderConfig

CAPACITY_STEP = 64  # the capacity of a slot is a multiple of it
BUCKET = 32  # a graph is captured for each multiple of this many rows
SPARE_SLOTS = 1  # that padding rows of a step write to
PREFILL_TOKENS = 32_768  # in one prefill pass, at most
SPARE_MEMORY = 0.15  # share of the free memory that the KV cache leaves free
COUNTERS = 44  # of a slot: four int64 and three int32


def capacity_of(longest: int) -> int:
    """Positions of a slot for sequences of up to `longest` tokens."""
    return -(-longest // CAPACITY_STEP) * CAPACITY_STEP


def cached_per_token(c: DecoderConfig, half: int = BF16) -> int:
    """Keys and values of a token in all layers, or its latents."""
    numbers = 2 * c.kv_heads * c.head_dim if c.latent is None else c.latent.cached
    return half * c.layers * numbers


def cache_bytes(c: DecoderConfig, slots: int, capacity: int, half: int = BF16) -> int:
    """The KV cache of all slots."""
    return (slots + SPARE_SLOTS) * capacity * cached_per_token(c, half)


def row_bytes(c: DecoderConfig, half: int = BF16) -> int:
    """One row of a decode step: stream, products of a block and logits."""
    products = half * (4 * c.width + 2 * joined_width(c) + 2 * c.heads * c.head_dim + 3 * c.active_mlp_width)
    return 2 * FP32 * c.width + products + FP32 * c.vocab_size


def slot_bytes(c: DecoderConfig, *, capacity: int, room: int, half: int = BF16) -> int:
    """One more slot: its KV cache, its row of a step, its tokens and log-probs."""
    return capacity * cached_per_token(c, half) + row_bytes(c, half) + 2 * FP32 * room + COUNTERS


def prefill_bytes(c: DecoderConfig, tokens: int, half: int = BF16) -> int:
    """A prefill pass over so many packed tokens of prompts."""
    width = (
        joined_width(c) + 3 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim + 2 * c.width + 3 * c.active_mlp_width
    )
    return tokens * (2 * FP32 * c.width + half * width)


def slots_that_fit(c: DecoderConfig, free: int, *, capacity: int, room: int, prefill: int, half: int = BF16) -> int:
    """The number of slots whose memory, with the prefill of prompts of `prefill` tokens each, fits into `free` bytes.

    A share of them stays free. Prompts of all slots are prefilled at once, up to PREFILL_TOKENS in a pass, before the
    first decode step.
    """
    free = int(free * (1 - SPARE_MEMORY))
    each = slot_bytes(c, capacity=capacity, room=room, half=half)
    spare = cache_bytes(c, 0, capacity, half)
    reading = prefill_bytes(c, PREFILL_TOKENS, half)
    if prefill and (few := (free - spare) // (each + prefill_bytes(c, prefill, half))) * prefill <= PREFILL_TOKENS:
        return max(1, few)
    return max(1, (free - spare - reading) // each)
