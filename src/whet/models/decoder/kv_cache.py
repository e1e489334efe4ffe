"""The KV cache of the plain sampling loop: rows of sequences that grow together, one token at a time.

The newest token of every row is in the same column, so a new one is written with a single copy; shorter rows have
masked columns at their start. Keys are stored transposed, as the product with the queries reads them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.errors import UserError
from whet.models.cpu.column_decode import Read
from whet.models.layers.attention import causal_attention


@dataclass(frozen=True, slots=True)
class _Layer:
    """Views of the cache that one layer reads and writes for one token."""

    new_keys: Tensor  # (rows, kv_heads, head_dim): the new column
    new_values: Tensor  # (rows, kv_heads, head_dim)
    keys: Tensor  # (rows · kv_heads, head_dim, columns)
    values: Tensor  # (rows · kv_heads, columns, head_dim)


class KVCache:
    """Keys and values of every layer; each row has its own length, and all rows end in the same column."""

    def __init__(self, lengths: Tensor, *, layers: int, columns: int, capacity: int, read: Read) -> None:
        """For prompts of (rows,) lengths padded to `columns`, and sequences of at most `capacity` tokens.

        `read` is the forward pass of prompts and later tokens, with the weights that prefilled this cache.
        """
        self.lengths, self.capacity, self.read = lengths, capacity, read
        self._host_lengths = lengths.cpu()  # a copy that needs no wait for the device
        if not bool((self._host_lengths > 0).all()):
            raise UserError("a prompt has no tokens: give it at least one, such as the beginning-of-sequence token")
        self._count, self._columns = layers, columns
        self._keys = torch.empty(0)  # (layers, rows, kv_heads, head_dim, columns or more)
        self._values = torch.empty(0)  # (layers, rows, kv_heads, columns or more, head_dim)
        self._is_aligned = False  # prompts are right-padded until `_move` aligns their last tokens
        self._layers: list[_Layer] = []
        self._bias: Tensor | None = None  # added to attention scores: −∞ in masked columns

    @property
    def keys(self) -> Tensor:
        """(layers, rows, kv_heads, columns, head_dim)."""
        return self._keys[..., : self._columns].transpose(-1, -2)

    @property
    def values(self) -> Tensor:
        """(layers, rows, kv_heads, columns, head_dim)."""
        return self._values[..., : self._columns, :]

    def fill(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Prefill: stores one layer's keys and values (rows, kv_heads, columns, head_dim); attends causally."""
        if layer == 0:
            rows, heads, columns, width = keys.shape
            self._keys = keys.new_empty(self._count, rows, heads, width, columns)
            self._values = keys.new_empty(self._count, rows, heads, columns, width)
        self._keys[layer] = keys.transpose(-1, -2)
        self._values[layer] = values
        return causal_attention(queries, keys, values)

    def open_column(self) -> None:
        """Makes every row one token longer; `append` then fills the new column layer by layer."""
        longest = int(self._host_lengths.max()) + 1
        if longest > self.capacity:
            raise UserError(
                f"a sequence of {longest} tokens exceeds the cache of {self.capacity}: begin with more room"
            )
        if not self._is_aligned or self._columns == self._keys.shape[-1]:
            self._move(torch.arange(len(self.lengths), device=self.lengths.device))
        new, past = self._columns, self._columns + 1
        self._columns = past
        self.lengths, self._host_lengths = self.lengths + 1, self._host_lengths + 1
        views = (
            self._keys[..., new].unbind(),
            self._values[..., new, :].unbind(),
            self._keys[..., :past].flatten(1, 2).unbind(),
            self._values[..., :past, :].flatten(1, 2).unbind(),
        )
        self._layers = [_Layer(*four) for four in zip(*views, strict=True)]
        self._bias = self._beginnings()

    def append(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Decode: stores one token's keys and values (rows, kv_heads, 1, head_dim); attends to the whole row."""
        stored = self._layers[layer]
        stored.new_keys.copy_(keys[:, :, 0])
        stored.new_values.copy_(values[:, :, 0])
        rows, heads, _, width = queries.shape
        # The query heads that share a key head are the rows of one matrix, so keys are not repeated.
        grouped = queries.reshape(rows * keys.shape[1], heads // keys.shape[1], width).to(keys.dtype)
        if self._bias is None:
            scores = torch.bmm(grouped / math.sqrt(width), stored.keys)
        else:
            scores = torch.baddbmm(self._bias, grouped, stored.keys, alpha=1 / math.sqrt(width))
        return torch.bmm(scores.softmax(dim=-1), stored.values).view(rows, heads, 1, width)

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]; a row that keeps its index is not copied."""
        rows = rows.to(self.lengths.device)
        if len(rows) > len(self.lengths):
            self._move(rows)
        else:
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
            if len(moved):
                self.keys[:, moved] = self.keys[:, rows[moved]]
                self.values[:, moved] = self.values[:, rows[moved]]
            self._keys, self._values = self._keys[:, : len(rows)], self._values[:, : len(rows)]
        self.lengths = self.lengths.index_select(0, rows)
        self._host_lengths = self._host_lengths.index_select(0, rows.cpu())

    def _move(self, rows: Tensor) -> None:
        """Copies rows into storage of full capacity, last tokens aligned, without columns that no row uses."""
        longest = int(self._host_lengths[rows.cpu()].max())
        places = self._places(longest)
        keys, values, self._columns, self._is_aligned = self._keys, self._values, longest, True
        count, _, heads, width, _ = keys.shape
        self._keys = keys.new_empty(count, len(rows), heads, width, self.capacity)
        self._values = keys.new_empty(count, len(rows), heads, self.capacity, width)
        for layer in range(count):
            aligned = keys[layer].gather(-1, places[:, None, None].expand(-1, heads, width, -1))
            self._keys[layer, ..., :longest] = aligned[rows]
            aligned = values[layer].gather(-2, places[:, None, :, None].expand(-1, heads, -1, width))
            self._values[layer, ..., :longest, :] = aligned[rows]

    def _places(self, longest: int) -> Tensor:
        """(rows, longest): the old column of each new one; before a row's first token, its first column again."""
        first = self._columns - longest if self._is_aligned else self.lengths[:, None] - longest
        return (torch.arange(longest, device=self.lengths.device) + first).clamp(min=0).expand(len(self.lengths), -1)

    def _beginnings(self) -> Tensor | None:
        """(rows · kv_heads, 1, columns): −∞ before a row's first token, 0 elsewhere; None if all rows are full."""
        if int(self._host_lengths.min()) == self._columns:
            return None
        hidden = torch.arange(self._columns, device=self.lengths.device) < (self._columns - self.lengths)[:, None]
        bias = torch.zeros(hidden.shape, dtype=self._keys.dtype, device=hidden.device).masked_fill(hidden, -math.inf)
        return bias[:, None].expand(-1, self._keys.shape[2], -1).flatten(0, 1)[:, None]
