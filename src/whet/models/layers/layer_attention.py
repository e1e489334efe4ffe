"""What each layer of a pass attends with: rows or a packing, with or without a sliding window and a soft cap.

A layer whose window is as long as the sequences attends as one without. On CUDA a window over a packing goes to the
flash kernels too (`Windowed`): what a branch sees of its root depends on the place of its tokens, so roots are not read
once for all of their branches; each branch gets a copy of the keys that its window reaches. A soft cap needs all scores
in memory (`masked_attention`).

Letters: B rows, T time, N packed tokens, R roots, S branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.attention import (
    Attend,
    Padded,
    Ragged,
    causal_attention,
    dense_attention,
    flash_backward,
    flash_forward,
    masked_attention,
    padded_attention,
    ragged_attention,
    ragged_attention_back,
    recent,
    repeated,
)
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing


@dataclass(frozen=True, slots=True)
class Scores:
    """What a layer does to its attention scores before the softmax."""

    window: int | None = None  # tokens, itself included, that a token sees; None: all before it
    cap: float | None = None

    @property
    def is_plain(self) -> bool:
        return self.window is None and self.cap is None


def layer_scores(config: DecoderConfig, longest: int) -> list[Scores]:
    """Of every layer, for sequences of at most so many tokens: a window that hides none of them is left out."""
    windows = (config.window_of(layer) for layer in range(config.layers))
    shorter = (window if window is not None and window < longest else None for window in windows)
    return [Scores(window, config.score_cap) for window in shorter]


def row_attentions(config: DecoderConfig, lengths: Tensor, width: int) -> list[Attend]:
    """Of every layer, for (B,) rows of these lengths, right-padded to `width`."""
    if not config.causal:
        inside = torch.arange(width, device=lengths.device) < lengths[:, None]
        return [partial(dense_attention, sees=None if bool(inside.all()) else inside[:, None, None])] * config.layers
    of_layers = layer_scores(config, width)
    each = {scores: _rows(scores, width, lengths.device) for scores in set(of_layers)}
    return [each[scores] for scores in of_layers]


def _rows(scores: Scores, width: int, device: torch.device) -> Attend:
    """Causal attention within rows; what their padding attends to does not matter."""
    return causal_attention if scores.is_plain else _Banded(recent(width, scores.window).to(device), scores.cap)


@dataclass(frozen=True, slots=True)
class _Banded:
    """Attention within rows through a (T, T) mask."""

    sees: Tensor
    cap: float | None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        groups = queries.shape[1] // keys.shape[1]
        return masked_attention(queries, repeated(keys, groups), repeated(values, groups), self.sees, self.cap)


def packed_attentions(config: DecoderConfig, packing: Packing) -> list[Attend]:
    """Of every layer; those that attend alike share their masks."""
    of_layers = layer_scores(config, packing.longest)
    each = {scores: PackedAttention(packing, scores) for scores in set(of_layers)}
    return [each[scores] for scores in of_layers]


FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_WIDEST = 256  # the largest head dim of torch's flash kernels


class PackedAttention:
    """Attention over a packing, for every layer of one pass of the plain block that has these scores."""

    def __init__(self, packing: Packing, scores: Scores = Scores()) -> None:
        self.packing, self.scores = packing, scores
        self._at: Ragged | Windowed | Padded | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(1, heads, N, dim) queries, (1, kv_heads, N, …) keys and values → (1, heads, N, value_dim)."""
        q, k, v = (x[0].transpose(0, 1) for x in (queries, keys, values))
        if self._at is None:
            self._at = self._placed(q, k, v)
        if isinstance(self._at, Padded):
            attended = padded_attention(q, k, v, self._at, self.scores.cap)
        else:
            narrower = q.shape[-1] - v.shape[-1]  # the kernels need values as wide as keys
            padded = F.pad(v, (0, narrower)) if narrower else v
            attended = _Flash.apply(q, k, padded, self._at)[..., : v.shape[-1]]  # type: ignore[no-untyped-call]
        return attended.transpose(0, 1)[None]

    def _placed(self, q: Tensor, k: Tensor, v: Tensor) -> Ragged | Windowed | Padded:
        window = self.scores.window
        if self.scores.cap is not None or not _fits_flash(q, v):
            return Padded.of(self.packing, q.device, q.shape[1] // k.shape[1], window)
        return Ragged.of(self.packing, q.device) if window is None else Windowed.of(self.packing, q.device, window)


def _fits_flash(queries: Tensor, values: Tensor) -> bool:
    """Whether the flash kernels support these (N, heads, dim) queries, and values that are padded to their width."""
    width = queries.shape[-1]
    fits = width % 8 == 0 and values.shape[-1] <= width <= FLASH_WIDEST
    return fits and queries.is_cuda and queries.dtype in FLASH_DTYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class Windowed:
    """A packing as the flash kernels take it with a sliding window: roots and branches as sequences of queries.

    The keys of a root are its own. Those of a branch are the last tokens of its root that the window of its first token
    reaches, and its own: copies, because several branches see the same tokens.
    """

    window: int
    seen: Tensor  # (K,): the packed token of each key
    places: tuple[Tensor, Tensor, int, int]  # (R + S + 1,) int32 ends of queries and of keys, the longest of both

    @classmethod
    def of(cls, packing: Packing, device: torch.device, window: int) -> Windowed:
        """Built once for all layers of a pass."""
        queries = torch.cat([packing.roots, packing.branches])
        ends = queries.cumsum(0)
        reached = packing.roots[packing.parents].clamp(max=window - 1) * (packing.branches > 0)
        keys = queries + torch.cat([torch.zeros_like(packing.roots), reached])
        starts = ends - queries  # of the queries; a branch's keys begin with the end of its root
        pieces = [torch.arange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        of_roots = [
            torch.arange(end - count, end)
            for end, count in zip(ends[packing.parents].tolist(), reached.tolist(), strict=True)
        ]
        count = len(packing.roots)
        of_branches = [part for pair in zip(of_roots, pieces[count:], strict=True) for part in pair]
        cumulative = [F.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32) for lengths in (queries, keys)]
        return cls(
            window=window,
            seen=torch.cat([*pieces[:count], *of_branches]).to(device),
            places=(cumulative[0], cumulative[1], int(queries.max()), int(keys.max())),
        )


def windowed_attention(q: Tensor, k: Tensor, v: Tensor, at: Windowed) -> tuple[Tensor, Tensor]:
    """(N, heads, dim), and the log-sum-exps (heads, N) that its gradient needs."""
    return flash_forward(q, k[at.seen], v[at.seen], at.places, causal=False, window=at.window)


def windowed_attention_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Windowed
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v; those of a root's keys and values are summed over its branches in fp32."""
    dq, *copies = flash_backward(grad, q, k[at.seen], v[at.seen], out, lse, at.places, causal=False, window=at.window)
    dk, dv = (
        torch.zeros(x.shape, device=x.device).index_add_(0, at.seen, of_copies.float()).to(x.dtype)
        for x, of_copies in zip((k, v), copies, strict=True)
    )
    return dq, dk, dv


class _Flash(torch.autograd.Function):
    """Autograd of `ragged_attention` and `windowed_attention`, for (N, heads, dim) half-precision CUDA tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, at: Ragged | Windowed) -> Tensor:
        out, lse = windowed_attention(q, k, v, at) if isinstance(at, Windowed) else ragged_attention(q, k, v, at)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.at = at
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        grad, at = grads[0].contiguous(), ctx.at
        if isinstance(at, Windowed):
            return (*windowed_attention_back(grad, q, k, v, out, lse, at), None)
        return (*ragged_attention_back(grad, q, k, v, out, lse, at), None)
