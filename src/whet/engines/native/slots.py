"""Slots of continuous batching: each holds one sequence on the device, with KV cache, counters and output.

The number of slots S includes a spare one, the last, which padding rows of a step write to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from whet.models.layers.decoder_config import DecoderConfig

log = logging.getLogger("whet")


class Drawn(NamedTuple):
    """One sampled completion."""

    tokens: list[int]
    logprobs: list[float]
    is_stopped: bool  # by a stop token or string, not by its limit


class Finished:
    """Collects completions and tells of each prompt once, when it has all of them."""

    def __init__(self, count: int, tell: Callable[[int, list[Drawn]], object]) -> None:
        """`count`: completions of each prompt."""
        self.count, self._tell = count, tell
        self._drawn: dict[int, dict[int, Drawn]] = {}  # prompt → sample → completion
        self._told: dict[int, list[Drawn]] = {}

    def add(self, first: int, drawn: Mapping[int, Drawn]) -> None:
        """Sequences that ended, by their numbers after `first`; those of a prompt are next to each other."""
        for sequence, one in drawn.items():
            prompt, sample = divmod(first + sequence, self.count)
            if prompt in self._told:  # a batch that began again
                continue
            group = self._drawn.setdefault(prompt, {})
            group[sample] = one
            if len(group) == self.count:
                del self._drawn[prompt]
                self._told[prompt] = [group[index] for index in range(self.count)]
                self._tell(prompt, self._told[prompt])

    def as_told(self, drawn: Sequence[Drawn]) -> list[Drawn]:
        """Completions of all prompts; those of a prompt that was told of as they were then."""
        prompts = range(len(drawn) // self.count)
        found = (self._told.get(p, drawn[p * self.count : (p + 1) * self.count]) for p in prompts)
        return [one for group in found for one in group]


def say_fewer(now: int, before: int) -> None:
    """Tells the user that memory sufficed for fewer sequences at a time than were tried."""
    message = "out of memory while sampling: %d sequences at a time from now on instead of %d (engine.max_sequences=%d)"
    log.warning(message, now, before, now)


@dataclass(frozen=True)
class SlotRows:
    """The state of every slot, one entry each."""

    tokens: Tensor  # (S,) int64: last sampled token
    positions: Tensor  # (S,) int32: position of that token in its sequence
    steps: Tensor  # (S,) int64: tokens sampled so far
    ended: Tensor  # (S,) int64: length of the completion, or its limit while it has not stopped
    streams: Tensor  # (S,) int64: key of the sequence's random numbers
    prefixes: Tensor  # (S,) int32: slot whose cache holds the prompt
    shared: Tensor  # (S,) int32: tokens to read from that slot; 0 for a slot with its own prompt
    out_tokens: Tensor  # (S, room) int32: the completion
    logprobs: Tensor  # (S, room) float32: of its tokens

    @classmethod
    def empty(cls, count: int, room: int, device: torch.device) -> SlotRows:
        """`count` slots without a sequence, for completions of at most `room` tokens."""
        tokens, steps, ended, streams = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(4))
        positions, prefixes, shared = (torch.zeros(count, dtype=torch.int32, device=device) for _ in range(3))
        out_tokens = torch.zeros(count, room, dtype=torch.int32, device=device)
        logprobs = torch.zeros(count, room, device=device)
        return cls(tokens, positions, steps, ended, streams, prefixes, shared, out_tokens, logprobs)

    def each(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Where:
    """The slot and position at which each of n rows writes its keys and values."""

    slots: Tensor  # (n,) int32
    positions: Tensor  # (n,) int32; or (S,) if `by_slot`, indexed by slot
    by_slot: bool


@dataclass(frozen=True)
class Turn:
    """Head norms and rotary angles that are applied to queries and keys."""

    angles: tuple[Tensor, Tensor]  # (capacity, dim / 2) cosine and sine of every position
    norms: tuple[Tensor, Tensor] | None  # (dim,) weights of the norms of query and key heads
    eps: float


class SlotCache:
    """Keys and values (layers, S, kv_heads, capacity, head_dim), allocated for a rollout and freed for training.

    Kernels read the addresses from `table` (2,) int64 on the device, so captured graphs stay valid when they change.
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
        """Allocates the memory, unless it is allocated."""
        if self.keys is None or self.values is None:
            self.keys, self.values = (torch.empty(self.shape, dtype=self.dtype, device=self.device) for _ in range(2))
            self.table.copy_(torch.tensor([self.keys.data_ptr(), self.values.data_ptr()]))

    def release(self) -> None:
        """Frees the memory."""
        self.keys = self.values = None

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(S, kv_heads, capacity, head_dim) keys and values of a layer."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[index], self.values[index]
