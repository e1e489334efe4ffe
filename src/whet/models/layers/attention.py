"""Attention without weights of its own: over padded rows, over packed sequences, and rotary positions.

In a packing every token sees what stands before it in its own sequence, its root (a shared prompt) included.
Half-precision CUDA tensors go to the flash kernels for ragged sequences: roots and branches each by themselves, then
branches over their roots, and the two parts of a branch are joined by their log-sum-exps. The backward pass of the
kernel takes the joined output and log-sum-exp, which makes each part's gradient that of the whole (as in ring
attention, Liu et al. 2023). Elsewhere roots and branches are padded for the attention alone (`Padded`); query heads
that share a key head stand side by side where a kernel expects time, so that no key is repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Sequences one behind the other as rows of a padded table."""

    count: int
    longest: int
    order: Tensor  # (n,): where in the flat table each token stands
    is_even: bool  # all as long as the longest: the table is the tokens as they are

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> Grid:
        longest = int(lengths.max()) if len(lengths) else 0
        inside = torch.arange(longest) < lengths[:, None]
        order = inside.flatten().nonzero()[:, 0].to(device)
        return cls(count=len(lengths), longest=longest, order=order, is_even=len(order) == len(lengths) * longest)

    def pad(self, x: Tensor) -> Tensor:
        """(n, …) → (count, longest, …), zeros elsewhere."""
        if not self.is_even:
            x = _Scatter.apply(x, self.order, self.count * self.longest)  # type: ignore[no-untyped-call]
        return x.reshape(self.count, self.longest, *x.shape[1:])

    def unpad(self, table: Tensor) -> Tensor:
        """(count, longest, …) → (n, …)."""
        flat = table.flatten(0, 1)
        if self.is_even:
            return flat
        tokens: Tensor = _Gather.apply(flat, self.order)  # type: ignore[no-untyped-call]
        return tokens


class _Scatter(torch.autograd.Function):
    """Rows to places that are all different; torch's own gradient of an index would add where nothing meets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(order)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, order, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None


class _Gather(torch.autograd.Function):
    """Rows from places that are all different."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        ctx.size = len(table)
        return table.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        return grad.new_zeros(ctx.size, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """The tables of a packing, and which keys each query sees."""

    split: int  # tokens of all roots
    roots: Grid
    branches: Grid
    parents: Tensor  # (S,)
    each: int  # branches of a root, where all have as many; else 0
    root_sees: Tensor  # (1, P, P)
    branch_sees: Tensor  # (S, Q, P + Q)
    _tiled: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, packing: Packing, device: torch.device) -> Padded:
        """For all layers of a pass."""
        roots, branches = (Grid.of(lengths, device) for lengths in (packing.roots, packing.branches))
        before = torch.ones(roots.longest, roots.longest, dtype=torch.bool).tril()
        own = torch.ones(branches.longest, branches.longest, dtype=torch.bool).tril()
        in_root = torch.arange(roots.longest) < packing.roots[packing.parents][:, None]
        sees = torch.cat(
            [
                in_root[:, None].expand(-1, branches.longest, -1),
                own.expand(branches.count, -1, -1),
            ],
            dim=2,
        )
        counts = torch.bincount(packing.parents, minlength=len(packing.roots))
        even = len(counts) > 0 and bool((counts == counts[0]).all())
        return cls(
            split=int(packing.roots.sum()),
            roots=roots,
            branches=branches,
            parents=packing.parents.to(device),
            each=int(counts[0]) if even else 0,
            root_sees=before[None].to(device),
            branch_sees=sees.to(device),
        )

    def sees(self, group: int) -> tuple[Tensor, Tensor]:
        """Both masks for `group` query heads side by side, (…, 1, group · queries, keys)."""
        if group not in self._tiled:
            tiled = (mask.repeat(1, group, 1)[:, None] for mask in (self.root_sees, self.branch_sees))
            self._tiled[group] = (*tiled,)  # type: ignore[assignment]
        return self._tiled[group]


def padded_attention(q: Tensor, k: Tensor, v: Tensor, at: Padded) -> Tensor:
    """(N, heads, dim) queries, (N, kv_heads, dim) keys and values → (N, heads, dim)."""
    group = q.shape[1] // k.shape[1]
    root_sees, branch_sees = at.sees(group)
    n = at.split
    (root_q, own_q), (root_k, own_k), (root_v, own_v) = (torch.split(x, [n, len(x) - n]) for x in (q, k, v))
    root_k, root_v = (at.roots.pad(x).transpose(1, 2) for x in (root_k, root_v))
    attended = F.scaled_dot_product_attention(
        _stacked(at.roots.pad(root_q), group), root_k, root_v, attn_mask=root_sees
    )
    pieces = [at.roots.unpad(_unstacked(attended, group))]
    if len(own_q):
        k, v = (
            torch.cat([_for_branches(root, at), at.branches.pad(own).transpose(1, 2)], dim=2)
            for root, own in ((root_k, own_k), (root_v, own_v))
        )
        queries = _stacked(at.branches.pad(own_q), group)
        attended = F.scaled_dot_product_attention(queries, k, v, attn_mask=branch_sees)
        pieces.append(at.branches.unpad(_unstacked(attended, group)))
    return torch.cat(pieces)


def padded_attention_back(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, at: Padded) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in queries, keys and values."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        attended = padded_attention(q, k, v, at)
    dq, dk, dv = torch.autograd.grad(attended, (q, k, v), grad)
    return dq, dk, dv


def _for_branches(root: Tensor, at: Padded) -> Tensor:
    """(R, …) → (S, …): to every branch its root's."""
    if at.each:
        return root[:, None].expand(-1, at.each, *root.shape[1:]).flatten(0, 1)
    return root[at.parents]


def _stacked(queries: Tensor, group: int) -> Tensor:
    """(n, L, heads, dim) → (n, kv_heads, group · L, dim)."""
    count, length, heads, dim = queries.shape
    return queries.view(count, length, heads // group, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _unstacked(attended: Tensor, group: int) -> Tensor:
    """(n, kv_heads, group · L, dim) → (n, L, heads, dim)."""
    count, kv_heads, stacked, dim = attended.shape
    apart = attended.view(count, kv_heads, group, stacked // group, dim)
    return apart.permute(0, 3, 1, 2, 4).flatten(2, 3)


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
