"""Attention over a packing: every token sees what stands before it in its own sequence, its root included.

Half-precision CUDA tensors go to the flash kernels for ragged sequences: roots and branches each by themselves, then
branches over their roots, and the two parts of a branch are joined by their log-sum-exps. The backward pass of the
kernel takes the joined output and log-sum-exp, which makes each part's gradient that of the whole (as in ring
attention, Liu et al. 2023). Elsewhere rows are padded for the attention alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.models.layers.packing import Packing
from whet.models.layers.padded_attention import Padded, padded_attention, padded_attention_back

FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_WIDEST = 256  # dimensions of a head


class PackedAttention:
    """Attends for every layer of one pass."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self._ragged: Ragged | None = None
        self._padded: Padded | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(1, heads, N, head_dim) queries and keys and values of fewer heads → what each query attended to."""
        q, k, v = (x[0].transpose(0, 1) for x in (queries, keys, values))
        if _fits_flash(q):
            self._ragged = self._ragged or Ragged.of(self.packing, q.device)
            attended: Tensor = _Flash.apply(q, k, v, self._ragged)  # type: ignore[no-untyped-call]
        else:
            self._padded = self._padded or Padded.of(self.packing, q.device)
            attended = padded_attention(q, k, v, self._padded)
        return attended.transpose(0, 1)[None]


def _fits_flash(queries: Tensor) -> bool:
    """Whether the flash kernels take these (N, heads, dim) queries."""
    width = queries.shape[-1]
    return queries.is_cuda and queries.dtype in FLASH_DTYPES and width % 8 == 0 and width <= FLASH_WIDEST


@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """Where the sequences of a packing begin, as the flash kernels want it: int32 sums of lengths, host maxima."""

    alone: Tensor  # of roots and branches
    longest: int
    split: int  # tokens of all roots
    queries: Tensor  # of the branches of each root together
    keys: Tensor  # of the roots
    most_queries: int
    most_keys: int

    @classmethod
    def of(cls, packing: Packing, device: torch.device) -> Ragged:
        both = torch.cat([packing.roots, packing.branches])
        joined = torch.zeros_like(packing.roots).index_add(0, packing.parents, packing.branches)
        return cls(
            alone=_sums(both).to(device),
            longest=int(both.max()),
            split=int(packing.roots.sum()),
            queries=_sums(joined).to(device),
            keys=_sums(packing.roots).to(device),
            most_queries=int(joined.max()),
            most_keys=int(packing.roots.max()),
        )

    @property
    def self_places(self) -> tuple[Any, ...]:
        return self.alone, self.alone, self.longest, self.longest

    @property
    def root_places(self) -> tuple[Any, ...]:
        return self.queries, self.keys, self.most_queries, self.most_keys


def _sums(lengths: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(torch.int32)


class _Flash(torch.autograd.Function):
    """(N, heads, dim) half-precision CUDA tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, at: Ragged) -> Tensor:
        out, lse = ragged_attention(q, k, v, at)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.at = at
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        return (*ragged_attention_back(grads[0].contiguous(), q, k, v, out, lse, ctx.at), None)


def attend(q: Tensor, k: Tensor, v: Tensor, at: Ragged | Padded) -> tuple[Tensor, Tensor | None]:
    """(N, heads, dim) without a graph, and what else its gradient needs."""
    return ragged_attention(q, k, v, at) if isinstance(at, Ragged) else (padded_attention(q, k, v, at), None)


def attend_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, at: Ragged | Padded
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in queries, keys and values."""
    if isinstance(at, Padded):
        return padded_attention_back(grad, q, k, v, at)
    assert lse is not None
    return ragged_attention_back(grad, q, k, v, out, lse, at)


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, at: Ragged) -> tuple[Tensor, Tensor]:
    """(N, heads, dim), and the log-sum-exps (heads, N) that its gradient needs."""
    from whet.models.layers.join_kernel import join  # triton comes with CUDA builds of torch only

    n = at.split
    out, lse = _forward(q, k, v, at.self_places, causal=True)
    if at.most_queries:
        join(out[n:], lse[:, n:], *_forward(q[n:], k[:n], v[:n], at.root_places, causal=False))
    return out, lse


def ragged_attention_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Ragged
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in queries, keys and values."""
    n = at.split
    dq, dk, dv = _backward(grad, q, k, v, out, lse, at.self_places, causal=True)
    if at.most_queries:
        places = at.root_places
        more = _backward(grad[n:], q[n:], k[:n], v[:n], out[n:], lse[:, n:].contiguous(), places, causal=False)
        dq[n:] += more[0]
        dk[:n] += more[1]
        dv[:n] += more[2]
    return dq, dk, dv


def _forward(q: Tensor, k: Tensor, v: Tensor, places: tuple[Any, ...], *, causal: bool) -> tuple[Tensor, Tensor]:
    """(N, heads, dim) and the log-sum-exp (heads, N)."""
    out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *places, 0.0, causal, False)
    return out, lse


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, places: tuple[Any, ...], *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # the state of a dropout that is not there
    dq, dk, dv = torch.ops.aten._flash_attention_backward(grad, q, k, v, out, lse, *places, 0.0, causal, unused, unused)
    return dq, dk, dv
