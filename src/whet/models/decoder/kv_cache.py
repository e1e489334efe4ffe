"""The caches of the plain sampling loop: rows of sequences that grow together, one token at a time.

The newest token of every row is in the same column, so a new one is written with a single copy; shorter rows have
masked columns at their start. `KVCache` holds keys and values; keys are stored transposed, as the product with the
queries reads them. `LatentCache` holds the latents of multi-head latent attention.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from whet.errors import UserError
from whet.models.cpu.column_decode import Read
from whet.models.layers.attention import Attend, soft_capped
from whet.models.layers.layer_attention import Scores


class GrowingRows(ABC):
    """Tensors (layers, rows, …) with a column per token; rows have their own lengths and all end in the same column."""

    dims: ClassVar[tuple[int, ...]]  # the dimension of each tensor's columns, counted from the end

    def __init__(self, lengths: Tensor, *, scores: Sequence[Scores], columns: int, capacity: int, read: Read) -> None:
        """For prompts of (rows,) lengths padded to `columns`, and sequences of at most `capacity` tokens.

        `scores`: of each layer. `read` is the forward pass of prompts and later tokens, with the weights that prefilled
        this cache.
        """
        self.lengths, self.capacity, self.read = lengths, capacity, read
        self._host_lengths = lengths.cpu()  # a copy that needs no wait for the device
        if not bool((self._host_lengths > 0).all()):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
        self._scores, self._count, self._columns = scores, len(scores), columns
        self._stored = [torch.empty(0) for _ in self.dims]
        self._is_aligned = False  # prompts are right-padded until `_move` aligns their last tokens

    @abstractmethod
    def prompt_attends(self, within: Sequence[Attend]) -> Sequence[Attend]:
        """Of each layer: attends `within` prompts, and stores what later tokens need of them."""

    @abstractmethod
    def token_attends(self) -> Sequence[Attend]:
        """Of each layer, after `open_column`: stores one token, which attends to its row, or to a window of it."""

    @abstractmethod
    def _opened(self) -> None:
        """Called when the last column is new and empty."""

    def open_column(self) -> None:
        """Makes every row one token longer; `token_attends` then fill the new column layer by layer."""
        longest = int(self._host_lengths.max()) + 1
        if longest > self.capacity:
            raise UserError(
                f"a sequence of {longest} tokens exceeds the cache of {self.capacity}: begin with more room"
            )
        if not self._is_aligned or self._columns == self._stored[0].shape[self.dims[0]]:
            self._move(torch.arange(len(self.lengths), device=self.lengths.device))
        self._columns += 1
        self.lengths, self._host_lengths = self.lengths + 1, self._host_lengths + 1
        self._opened()

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]; a row that keeps its index is not copied."""
        rows = rows.to(self.lengths.device)
        if len(rows) > len(self.lengths):
            self._move(rows)
        else:
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
            if len(moved):
                for used in self._used():
                    used[:, moved] = used[:, rows[moved]]
            self._stored = [tensor[:, : len(rows)] for tensor in self._stored]
        self.lengths = self.lengths.index_select(0, rows)
        self._host_lengths = self._host_lengths.index_select(0, rows.cpu())

    def _used(self) -> list[Tensor]:
        """The stored tensors without the columns that are still free."""
        pairs = zip(self._stored, self.dims, strict=True)
        return [tensor.narrow(dim, 0, self._columns) for tensor, dim in pairs]

    def _move(self, rows: Tensor) -> None:
        """Copies rows into storage of full capacity, last tokens aligned, without columns that no row uses."""
        longest = int(self._host_lengths[rows.cpu()].max())
        places = self._places(longest)
        stored, self._columns, self._is_aligned = self._stored, longest, True
        self._stored = []
        for tensor, dim in zip(stored, self.dims, strict=True):
            shape = list(tensor.shape)
            shape[1], shape[dim] = len(rows), self.capacity
            wider = tensor.new_empty(shape)
            index = places.view([len(places), *(longest if d == dim else 1 for d in range(2 - len(shape), 0))])
            for layer in range(self._count):
                sizes = [*tensor[layer].shape]
                sizes[dim] = longest
                aligned = tensor[layer].gather(dim, index.expand(sizes))
                wider[layer].narrow(dim, 0, longest).copy_(aligned[rows])
            self._stored.append(wider)

    def _places(self, longest: int) -> Tensor:
        """(rows, longest): the old column of each new one; before a row's first token, its first column again."""
        first = self._columns - longest if self._is_aligned else self.lengths[:, None] - longest
        return (torch.arange(longest, device=self.lengths.device) + first).clamp(min=0).expand(len(self.lengths), -1)

    def _beginnings(self) -> Tensor | None:
        """(rows, columns): −∞ before a row's first token, 0 elsewhere; None if all rows are full."""
        if int(self._host_lengths.min()) == self._columns:
            return None
        hidden = torch.arange(self._columns, device=self.lengths.device) < (self._columns - self.lengths)[:, None]
        zeros = torch.zeros(hidden.shape, dtype=self._stored[0].dtype, device=hidden.device)
        return zeros.masked_fill(hidden, -math.inf)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Views of the cache that one layer reads and writes for one token."""

    new_keys: Tensor  # (rows, kv_heads, head_dim): the new column
    new_values: Tensor  # (rows, kv_heads, head_dim)
    keys: Tensor  # (rows · kv_heads, head_dim, columns): those that the token sees
    values: Tensor  # (rows · kv_heads, columns, head_dim)
    bias: Tensor | None  # (rows · kv_heads, 1, columns), added to scores: −∞ before a row's first token
    cap: float | None  # of scores


class KVCache(GrowingRows):
    """Keys (layers, rows, kv_heads, head_dim, columns) and values (layers, rows, kv_heads, columns, head_dim)."""

    dims = (-1, -2)
    _layers: Sequence[_Layer] = ()

    @property
    def keys(self) -> Tensor:
        """(layers, rows, kv_heads, columns, head_dim)."""
        return self._used()[0].transpose(-1, -2)

    @property
    def values(self) -> Tensor:
        """(layers, rows, kv_heads, columns, head_dim)."""
        return self._used()[1]

    def prompt_attends(self, within: Sequence[Attend]) -> Sequence[Attend]:
        return [partial(self._fill, layer, attend) for layer, attend in enumerate(within)]

    def token_attends(self) -> Sequence[Attend]:
        return [partial(self._append, layer) for layer in range(self._count)]

    def _fill(self, layer: int, within: Attend, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Prefill: stores one layer's keys and values (rows, kv_heads, columns, head_dim); attends within prompts."""
        if layer == 0:
            rows, heads, columns, width = keys.shape
            self._stored = [
                keys.new_empty(self._count, rows, heads, width, columns),
                keys.new_empty(self._count, rows, heads, columns, width),
            ]
        self._stored[0][layer] = keys.transpose(-1, -2)
        self._stored[1][layer] = values
        return within(queries, keys, values)

    def _opened(self) -> None:
        keys, values = self._used()
        bias = self._beginnings()
        bias = None if bias is None else bias.repeat_interleave(keys.shape[2], dim=0)[:, None]
        new_keys, new_values = keys[..., -1].unbind(), values[..., -1, :].unbind()
        views = zip(new_keys, new_values, keys.flatten(1, 2).unbind(), values.flatten(1, 2).unbind(), strict=True)
        self._layers = [
            _seen(_Layer(*four, bias, scores.cap), scores.window)
            for four, scores in zip(views, self._scores, strict=True)
        ]

    def _append(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Decode: stores one token's keys and values (rows, kv_heads, 1, head_dim); attends to the whole row."""
        stored = self._layers[layer]
        stored.new_keys.copy_(keys[:, :, 0])
        stored.new_values.copy_(values[:, :, 0])
        rows, heads, _, width = queries.shape
        # The query heads that share a key head are the rows of one matrix, so keys are not repeated.
        grouped = queries.reshape(rows * keys.shape[1], heads // keys.shape[1], width).to(keys.dtype)
        if stored.bias is None or stored.cap is not None:
            scores = torch.bmm(grouped / math.sqrt(width), stored.keys)
        else:
            scores = torch.baddbmm(stored.bias, grouped, stored.keys, alpha=1 / math.sqrt(width))
        if stored.cap is not None:
            scores = soft_capped(scores, stored.cap).to(scores.dtype)
            scores = scores if stored.bias is None else scores + stored.bias
        return torch.bmm(scores.softmax(dim=-1), stored.values).view(rows, heads, 1, width)


def _seen(layer: _Layer, window: int | None) -> _Layer:
    """The columns that a sliding window leaves: all rows end in the same one."""
    if window is None:
        return layer
    bias = None if layer.bias is None else layer.bias[..., -window:]
    return replace(layer, keys=layer.keys[..., -window:], values=layer.values[:, -window:], bias=bias)


class LatentCache(GrowingRows):
    """Latents (layers, rows, columns, kv_rank + rope_dim): a token's normed latent, and its rotated shared key."""

    dims = (-2,)
    _past: Sequence[Tensor] = ()
    _bias = torch.empty(0)  # (rows, 1, columns) or (1, 1, 1), added to attention scores: −∞ in masked columns

    @property
    def latents(self) -> Tensor:
        """(layers, rows, columns, kv_rank + rope_dim)."""
        return self._used()[0]

    def prompt_attends(self, within: Sequence[Attend]) -> Sequence[Attend]:
        return [LatentLayer(self, layer, within=attend) for layer, attend in enumerate(within)]

    def token_attends(self) -> Sequence[Attend]:
        return [LatentLayer(self, layer, within=None) for layer in range(self._count)]

    def fill(self, layer: int, latents: Tensor) -> None:
        """Prefill: stores one layer's (rows, columns, kv_rank + rope_dim)."""
        if layer == 0:
            self._stored = [latents.new_empty(self._count, *latents.shape)]
        self._stored[0][layer] = latents

    def append(self, layer: int, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Decode: stores one token's (rows, 1, kv_rank + rope_dim); returns all of the row, and the mask to add."""
        self._past[layer][:, -1:] = latents
        return self._past[layer], self._bias

    def _opened(self) -> None:
        self._past = self.latents.unbind()
        bias = self._beginnings()
        self._bias = self.latents.new_zeros(1, 1, 1) if bias is None else bias[:, None]


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """One layer of a `LatentCache`. Latent attention gives it the latents; attention within prompts is plain."""

    cache: LatentCache
    layer: int
    within: Attend | None  # of prompts; None for a later token

    def keep(self, latents: Tensor) -> tuple[Tensor, Tensor] | None:
        """Stores (rows, T, kv_rank + rope_dim). For a later token: what it attends to, and the mask to add."""
        if self.within is None:
            return self.cache.append(self.layer, latents)
        self.cache.fill(self.layer, latents)
        return None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Within prompts."""
        assert self.within is not None
        return self.within(queries, keys, values)
