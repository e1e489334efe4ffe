"""Causal attention of padded rows, and rotary position embeddings. Functions without weights."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.decoder_config import DecoderConfig


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Every token attends to itself and to what stands before it; padding on the right therefore needs no mask."""
    groups = queries.shape[1] // keys.shape[1]
    # Only the half-precision CUDA kernels share keys among heads; elsewhere enable_gqa means quadratic memory.
    shared = groups > 1 and queries.is_cuda and queries.dtype is not torch.float32
    if groups > 1 and not shared:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=shared)


def rotary_angles(config: DecoderConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The fp32 cosine and sine of every position's angles, with a dimension for the heads."""
    angles = positions[..., None].float() * rotary_frequencies(config, positions.device)
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


@lru_cache(maxsize=32)
def rotary_frequencies(config: DecoderConfig, device: torch.device) -> Tensor:
    """(head_dim / 2,) radians per token; a function rather than a buffer, so that casting a model leaves it fp32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_base**exponents
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns within the first context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    return frequencies.to(device)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs (i, i + head_dim / 2) by their angle. Su et al. 2021, in Hugging Face's order of dimensions."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(states.dtype)
