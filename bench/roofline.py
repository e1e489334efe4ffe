"""What one H200 cannot beat: bytes over bandwidth, products over arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whet.models.layers.decoder_config import DecoderConfig, kv_bytes_per_token, parameter_count

BANDWIDTH = 4.8e12  # bytes a second
FLOPS = 790e12  # dense bf16, as measured
BYTES = 2  # a number in bf16

DECODE = "max((2N + KV·Σcontext)/4.8 TB/s, (2N·batch + 4·L·d·Σcontext)/790 TFLOP/s) for each step"
PREFILL = "2N/790 TFLOP/s for each token of a prompt, each prompt read once"
TRAINING = "6N + 6·L·d·T FLOP for each token"
LETTERS = (
    "N parameters (a tied head once), L layers, d = heads × head_dim, KV bytes of a token's keys and values, T tokens"
)


def kv_bytes(config: DecoderConfig) -> int:
    """Keys and values of one token, in bf16."""
    return kv_bytes_per_token(config, torch.bfloat16)


def attention_width(config: DecoderConfig) -> int:
    """d: the width of all heads together, which for Qwen3 is not the model's."""
    return config.heads * config.head_dim


def decode_seconds(config: DecoderConfig, contexts: Sequence[int]) -> float:
    """One more token for sequences of these lengths."""
    n, total = parameter_count(config), sum(contexts)
    traffic = BYTES * n + kv_bytes(config) * total
    products = 2 * n * len(contexts) + 4 * config.layers * attention_width(config) * total
    return max(traffic / BANDWIDTH, products / FLOPS)


def rollout_seconds(config: DecoderConfig, requests: Sequence[tuple[int, int]], *, group: int = 1) -> float:
    """All sequences at once from (prompt, new) lengths, `group` for each prompt, none waiting for another."""
    prefill = 2 * parameter_count(config) * sum(prompt for prompt, _ in requests) / FLOPS
    steps = (
        [prompt + step for prompt, new in requests if new > step] * group
        for step in range(max(new for _, new in requests))
    )
    return prefill + sum(decode_seconds(config, contexts) for contexts in steps)


def cache_bytes(config: DecoderConfig, requests: Sequence[tuple[int, int]], *, group: int = 1) -> int:
    """Keys and values that attention reads while (prompt, new) sequences are decoded, `group` for each prompt.

    The first new token comes from the pass over the prompt; the i-th one after it reads prompt + i positions.
    """
    positions = sum((new - 1) * prompt + new * (new - 1) // 2 for prompt, new in requests)
    return kv_bytes(config) * positions * group


def training_flop(config: DecoderConfig, *, sequences: int, tokens: int) -> float:
    """Forward and backward over so many sequences of so many tokens."""
    each = 6 * parameter_count(config) + 6 * config.layers * attention_width(config) * tokens
    return float(each) * sequences * tokens
