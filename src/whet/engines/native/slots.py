"""Slots of continuous batching: each holds a sequence on the device, its KV cache, its counters and its output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whet.models.layers.decoder_config import DecoderConfig


@dataclass(frozen=True)
class Rows:
    """One entry per slot, and one more that padding points to."""

    tokens: Tensor  # (S,) int64: the last one drawn
    positions: Tensor  # (S,) int32: where it stands
    steps: Tensor  # (S,) int64: tokens drawn
    ended: Tensor  # (S,) int64: tokens that the sequence will have, as far as is known
    streams: Tensor  # (S,) int64: names the random numbers
    prefixes: Tensor  # (S,) int32: the slot whose cache holds the beginning
    shared: Tensor  # (S,) int32: tokens of that beginning; 0 where a slot has all of its own
    out_tokens: Tensor  # (S, room) int32
    logprobs: Tensor  # (S, room) float32

    @classmethod
    def empty(cls, count: int, room: int, device: torch.device) -> Rows:
        """Nothing drawn yet."""

        def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            tokens=whole(count),
            positions=whole(count, dtype=torch.int32),
            steps=whole(count),
            ended=whole(count),
            streams=whole(count),
            prefixes=whole(count, dtype=torch.int32),
            shared=whole(count, dtype=torch.int32),
            out_tokens=whole(count, room, dtype=torch.int32),
            logprobs=whole(count, room, dtype=torch.float32),
        )

    def each(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (
            self.tokens,
            self.positions,
            self.steps,
            self.ended,
            self.streams,
            self.prefixes,
            self.shared,
            self.out_tokens,
            self.logprobs,
        )


@dataclass(frozen=True)
class Where:
    """At which slot and position each row writes its keys and values."""

    slots: Tensor  # (n,) int32
    positions: Tensor  # (n,) int32; or (S,), of the slots
    by_slot: bool  # which of the two


@dataclass(frozen=True)
class Turn:
    """How queries and keys are made from their projection."""

    angles: tuple[Tensor, Tensor]  # (capacity, dim / 2) cosine and sine of every position
    norms: tuple[Tensor, Tensor] | None  # (dim,) weights of the norms of query and key heads
    eps: float


class Cache:
    """Keys and values (layers, slots + 1, kv_heads, capacity, head_dim), whose memory can be given back.

    Graphs find them by addresses in `table`, so that they may lie elsewhere every time.
    """

    def __init__(
        self, config: DecoderConfig, *, slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = (config.layers, slots + 1, config.kv_heads, capacity, config.head_dim)
        self.dtype, self.device, self.capacity = dtype, device, capacity
        self.table = torch.zeros(2, dtype=torch.int64, device=device)
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def hold(self) -> None:
        """Takes the memory, unless it is held."""
        if self.keys is None or self.values is None:
            self.keys, self.values = (torch.empty(self.shape, dtype=self.dtype, device=self.device) for _ in range(2))
            self.table.copy_(torch.tensor([self.keys.data_ptr(), self.values.data_ptr()]))

    def release(self) -> None:
        """Gives it back to whoever computes next on the device."""
        self.keys = self.values = None

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(slots + 1, kv_heads, capacity, head_dim) keys and values of a layer."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[index], self.values[index]


def slot_bytes(config: DecoderConfig, *, capacity: int, room: int, dtype: torch.dtype) -> int:
    """What one more slot needs: cache, activations of its row, logits, what it has said."""
    size = dtype.itemsize
    cache = 2 * size * config.layers * config.kv_heads * capacity * config.head_dim
    row = size * (4 * config.width + 6 * config.heads * config.head_dim + 4 * config.mlp_width)
    return cache + row + 4 * config.vocab_size + 8 * room
