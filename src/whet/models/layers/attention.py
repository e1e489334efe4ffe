"""Attention without weights of its own: over padded rows, over packed sequences, and rotary positions (RoPE).

In a packing every token attends to the earlier tokens of its own sequence, its root (a shared prompt) included.
Half-precision CUDA tensors go to the variable-length flash kernels (`Ragged`): roots and branches each by themselves,
then branches over their roots, and both parts of a branch are merged by their log-sum-exps. Given the merged output and
log-sum-exp, the kernel's backward pass yields each part's share of the total gradient (as in ring attention, Liu et
al. 2023). Elsewhere roots and branches are padded for attention alone (`Padded`), and the query heads that share a key
head are stacked along time, so that keys are not repeated.

Letters: B rows, T time, N packed tokens, R roots, S branches, P and Q the longest root and branch, dim a head's width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing

# (B, heads, T, dim) queries, (B, kv_heads, T, dim) keys, (B, kv_heads, T, value_dim) values → (B, heads, T, value_dim).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor] | None  # cosine and sine of the positions' angles; None for learned positions


def row_attention(config: DecoderConfig, lengths: Tensor, width: int) -> Attend:
    """Attention of (B,) rows of these lengths, padded to `width`; where it is not causal, padding is hidden."""
    if config.causal:
        return causal_attention
    inside = torch.arange(width, device=lengths.device) < lengths[:, None]
    return partial(_attention, sees=None if bool(inside.all()) else inside[:, None, None])


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(B, heads, T, dim) queries, (B, kv_heads, T, …) keys and values. Padding on the right needs no mask."""
    return _attention(queries, keys, values, is_causal=True)


def _attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, sees: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """`sees`: which keys are attended to, as a mask that is broadcast to (B, heads, T, T)."""
    groups = queries.shape[1] // keys.shape[1]
    # Only the half-precision CUDA kernels share keys among heads; elsewhere enable_gqa takes quadratic memory.
    shared = groups > 1 and queries.is_cuda and queries.dtype is not torch.float32
    if groups > 1 and not shared:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=sees, is_causal=is_causal, enable_gqa=shared)


def rotary_angles(config: DecoderConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(…, T) positions → fp32 cosine and sine of their angles, (…, 1, T, dim / 2) each."""
    angles = positions[..., None].float() * rotary_frequencies(config, positions.device)
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


@lru_cache(maxsize=32)
def rotary_frequencies(config: DecoderConfig, device: torch.device) -> Tensor:
    """(dim / 2,) radians per token; not a buffer, so that casting a model leaves it in fp32."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).float() / config.rotary_dim
    frequencies = 1.0 / config.rope_base**exponents
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None:
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns within the original context
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    return frequencies.to(device)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """RoPE (Su et al. 2021) of (…, dim): rotates the pairs (i, i + dim / 2), the layout of Hugging Face."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(states.dtype)


def uninterleaved(states: Tensor) -> Tensor:
    """(…, dim) with rotary pairs (2i, 2i + 1) → the layout of `rotate`, (i, i + dim / 2).

    Rotated queries and keys in either layout have the same products.
    """
    return torch.cat(states.view(*states.shape[:-1], -1, 2).unbind(-1), dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Conversion between n concatenated tokens and rows padded to the longest sequence."""

    count: int
    longest: int
    order: Tensor  # (n,): index of each token in the flattened table
    is_even: bool  # all sequences are equally long: no padding, and conversion is a reshape

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> Grid:
        longest = int(lengths.max()) if len(lengths) else 0
        inside = torch.arange(longest) < lengths[:, None]
        order = inside.flatten().nonzero()[:, 0].to(device)
        return cls(count=len(lengths), longest=longest, order=order, is_even=len(order) == len(lengths) * longest)

    def pad(self, x: Tensor) -> Tensor:
        """(n, …) → (count, longest, …), zeros elsewhere."""
        if not self.is_even:
            x = x.new_zeros(self.count * self.longest, *x.shape[1:]).index_copy(0, self.order, x)
        return x.reshape(self.count, self.longest, *x.shape[1:])

    def unpad(self, table: Tensor) -> Tensor:
        """(count, longest, …) → (n, …)."""
        flat = table.flatten(0, 1)
        if self.is_even:
            return flat
        tokens: Tensor = _Gather.apply(flat, self.order)  # type: ignore[no-untyped-call]
        return tokens


class _Gather(torch.autograd.Function):
    """`index_select` of distinct rows: its gradient is a copy, where torch's own adds rows up."""

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
    """A packing as padded tables, with attention masks (True: the query sees the key).

    Masks are for the query heads that share a key head, stacked along time: `group` of them.
    """

    split: int  # tokens of all roots
    roots: Grid
    branches: Grid
    parents: Tensor  # (S,): the root of each branch
    each: int  # branches per root if all roots have as many, else 0
    root_sees: Tensor  # (1, 1, group · P, P)
    branch_sees: Tensor  # (S, 1, group · Q, P + Q): the root's keys, then the branch's own

    @classmethod
    def of(cls, packing: Packing, device: torch.device, group: int) -> Padded:
        """Built once for all layers of a pass."""
        roots, branches = (Grid.of(lengths, device) for lengths in (packing.roots, packing.branches))
        before = torch.ones(roots.longest, roots.longest, dtype=torch.bool).tril()
        own = torch.ones(branches.longest, branches.longest, dtype=torch.bool).tril()
        in_root = torch.arange(roots.longest) < packing.roots[packing.parents][:, None]
        sees = torch.cat([in_root[:, None].expand(-1, branches.longest, -1), own.expand(branches.count, -1, -1)], dim=2)
        counts = torch.bincount(packing.parents, minlength=len(packing.roots))
        even = len(counts) > 0 and bool((counts == counts[0]).all())
        return cls(
            split=int(packing.roots.sum()),
            roots=roots,
            branches=branches,
            parents=packing.parents.to(device),
            each=int(counts[0]) if even else 0,
            root_sees=before.repeat(group, 1)[None, None].to(device),
            branch_sees=sees.to(device).repeat(1, group, 1)[:, None],
        )


def padded_attention(q: Tensor, k: Tensor, v: Tensor, at: Padded) -> Tensor:
    """(N, heads, dim) queries, (N, kv_heads, dim) keys, (N, kv_heads, value_dim) values → (N, heads, value_dim)."""
    group, n = q.shape[1] // k.shape[1], at.split
    (root_q, own_q), (root_k, own_k), (root_v, own_v) = (torch.split(x, [n, len(x) - n]) for x in (q, k, v))
    root_k, root_v = (at.roots.pad(x).transpose(1, 2) for x in (root_k, root_v))
    attended = F.scaled_dot_product_attention(
        _stacked(at.roots.pad(root_q), group), root_k, root_v, attn_mask=at.root_sees
    )
    pieces = [at.roots.unpad(_unstacked(attended, group))]
    if len(own_q):
        k, v = (
            torch.cat([_for_branches(root, at), at.branches.pad(own).transpose(1, 2)], dim=2)
            for root, own in ((root_k, own_k), (root_v, own_v))
        )
        queries = _stacked(at.branches.pad(own_q), group)
        attended = F.scaled_dot_product_attention(queries, k, v, attn_mask=at.branch_sees)
        pieces.append(at.branches.unpad(_unstacked(attended, group)))
    return torch.cat(pieces)


def padded_attention_back(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, at: Padded) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v: autograd's, of attention computed again."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    with torch.enable_grad():
        attended = padded_attention(q, k, v, at)
    dq, dk, dv = torch.autograd.grad(attended, (q, k, v), grad)
    return dq, dk, dv


def _for_branches(root: Tensor, at: Padded) -> Tensor:
    """(R, …) → (S, …): repeats each root's rows for its branches."""
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
FLASH_WIDEST = 256  # the largest head dim of torch's flash kernels


class PackedAttention:
    """Attention over a packing, for every layer of one pass of the plain block."""

    def __init__(self, packing: Packing) -> None:
        self.packing = packing
        self._at: Ragged | Padded | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """(1, heads, N, dim) queries, (1, kv_heads, N, …) keys and values → (1, heads, N, value_dim)."""
        q, k, v = (x[0].transpose(0, 1) for x in (queries, keys, values))
        if self._at is None:
            group = q.shape[1] // k.shape[1]
            self._at = (
                Ragged.of(self.packing, q.device) if _fits_flash(q, v) else Padded.of(self.packing, q.device, group)
            )
        if isinstance(self._at, Ragged):
            narrower = q.shape[-1] - v.shape[-1]  # the kernels need values as wide as keys
            padded = F.pad(v, (0, narrower)) if narrower else v
            attended: Tensor = _Flash.apply(q, k, padded, self._at)[..., : v.shape[-1]]  # type: ignore[no-untyped-call]
        else:
            attended = padded_attention(q, k, v, self._at)
        return attended.transpose(0, 1)[None]


def _fits_flash(queries: Tensor, values: Tensor) -> bool:
    """Whether the flash kernels support these (N, heads, dim) queries, and values that are padded to their width."""
    width = queries.shape[-1]
    fits = width % 8 == 0 and values.shape[-1] <= width <= FLASH_WIDEST
    return fits and queries.is_cuda and queries.dtype in FLASH_DTYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class Ragged:
    """Sequence boundaries of a packing, as the flash kernels take them.

    Each is (int32 cumulative lengths of queries, and of keys, on the device, the longest of both on the host).
    """

    split: int  # tokens of all roots
    alone: tuple[Tensor, Tensor, int, int]  # (R + S + 1,): roots and branches, each a sequence by itself
    across: tuple[Tensor, Tensor, int, int]  # (R + 1,): all branches of each root together, and the roots as keys

    @classmethod
    def of(cls, packing: Packing, device: torch.device) -> Ragged:
        both = torch.cat([packing.roots, packing.branches])
        joined = torch.zeros_like(packing.roots).index_add(0, packing.parents, packing.branches)
        alone, queries, keys = (
            F.pad(lengths.cumsum(0), (1, 0)).to(device, torch.int32) for lengths in (both, joined, packing.roots)
        )
        longest = int(both.max())
        return cls(
            split=int(packing.roots.sum()),
            alone=(alone, alone, longest, longest),
            across=(queries, keys, int(joined.max()), int(packing.roots.max())),
        )

    @property
    def has_branches(self) -> bool:
        return self.across[2] > 0


class _Flash(torch.autograd.Function):
    """Autograd of `ragged_attention`, for (N, heads, dim) half-precision CUDA tensors."""

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
    """Attention without autograd, for the fused block: (N, heads, dim), and log-sum-exps if the gradient needs them."""
    return ragged_attention(q, k, v, at) if isinstance(at, Ragged) else (padded_attention(q, k, v, at), None)


def attend_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, at: Ragged | Padded
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v; `out` and `lse` are what `attend` returned."""
    if isinstance(at, Padded):
        return padded_attention_back(grad, q, k, v, at)
    assert lse is not None
    return ragged_attention_back(grad, q, k, v, out, lse, at)


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, at: Ragged) -> tuple[Tensor, Tensor]:
    """(N, heads, dim), and the log-sum-exps (heads, N) that its gradient needs."""
    from whet.models.layers.join_kernel import join  # imports Triton, which only CUDA builds of torch have

    n = at.split
    out, lse = _forward(q, k, v, at.alone, causal=True)
    if at.has_branches:
        join(out[n:], lse[:, n:], *_forward(q[n:], k[:n], v[:n], at.across, causal=False))
    return out, lse


def ragged_attention_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Ragged
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v. With the merged out and lse, the gradients of both parts of a branch just add up."""
    n = at.split
    dq, dk, dv = _backward(grad, q, k, v, out, lse, at.alone, causal=True)
    if at.has_branches:
        more = _backward(grad[n:], q[n:], k[:n], v[:n], out[n:], lse[:, n:].contiguous(), at.across, causal=False)
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
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # the random state of dropout, which is 0
    dq, dk, dv = torch.ops.aten._flash_attention_backward(grad, q, k, v, out, lse, *places, 0.0, causal, unused, unused)
    return dq, dk, dv
