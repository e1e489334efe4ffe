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
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.packing import Packing

# (B, heads, T, dim) queries, (B, kv_heads, T, dim) keys, (B, kv_heads, T, value_dim) values → (B, heads, T, value_dim).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor] | None  # cosine and sine of the positions' angles; None for learned positions


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """(B, heads, T, dim) queries, (B, kv_heads, T, …) keys and values. Padding on the right needs no mask."""
    return dense_attention(queries, keys, values, is_causal=True)


def dense_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, sees: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """`sees`: which keys are attended to, as a mask that is broadcast to (B, heads, T, T)."""
    groups = queries.shape[1] // keys.shape[1]
    # Only the half-precision CUDA kernels share keys among heads; elsewhere enable_gqa takes quadratic memory.
    shared = groups > 1 and queries.is_cuda and queries.dtype is not torch.float32
    if not shared:
        keys, values = repeated(keys, groups), repeated(values, groups)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=sees, is_causal=is_causal, enable_gqa=shared)


def repeated(heads: Tensor, groups: int) -> Tensor:
    """(B, kv_heads, T, dim) → (B, heads, T, dim), as many as there are query heads."""
    return heads.repeat_interleave(groups, dim=1) if groups > 1 else heads


def masked_attention(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor, cap: float | None = None) -> Tensor:
    """(B, heads, T, dim) queries over as many heads of keys and values.

    `sees`: which keys are attended to, as a mask that is broadcast to (B, heads, T, T). With a `cap` the scores s are
    cap · tanh(s / cap), which the kernels of torch do not do: those of one layer are then in memory. The backward pass
    computes them again, because those of all layers would take more than everything else that is kept.
    """
    if cap is None:
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=sees)
    given = (queries, keys, values, sees, cap)
    attended: Tensor = checkpoint(_capped_attention, *given, use_reentrant=False, preserve_rng_state=False)
    return attended


def _capped_attention(queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor, cap: float) -> Tensor:
    scores = soft_capped(queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1]), cap)
    return scores.masked_fill(~sees, -math.inf).softmax(dim=-1).to(values.dtype) @ values


def soft_capped(scores: Tensor, cap: float) -> Tensor:
    """cap · tanh(s / cap) in fp32: between −cap and cap (Gemma Team 2024, arXiv 2408.00118 §2)."""
    return torch.tanh(scores.float() / cap) * cap


def rotary_angles(config: DecoderConfig, positions: Tensor, *, windowed: bool = False) -> tuple[Tensor, Tensor]:
    """(…, T) positions → fp32 cosine and sine of their angles, (…, 1, T, dim / 2) each."""
    angles = positions[..., None].float() * rotary_frequencies(config, positions.device, windowed=windowed)
    return angles.cos().unsqueeze(-3), angles.sin().unsqueeze(-3)


@lru_cache(maxsize=32)
def rotary_frequencies(config: DecoderConfig, device: torch.device, *, windowed: bool = False) -> Tensor:
    """(dim / 2,) radians per token; not a buffer, so that casting a model leaves it in fp32.

    `windowed`: of the layers with a sliding window, which may have a base of their own.
    """
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.int64).float() / config.rotary_dim
    if windowed and config.window_rope_base is not None:
        return (1.0 / config.window_rope_base**exponents).to(device)
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
    def of(cls, packing: Packing, device: torch.device, group: int, window: int | None = None) -> Padded:
        """Built once for all layers of a pass; with a sliding `window`, for all that have it."""
        roots, branches = (Grid.of(lengths, device) for lengths in (packing.roots, packing.branches))
        before, own = (recent(longest, window) for longest in (roots.longest, branches.longest))
        columns, lengths = torch.arange(roots.longest), packing.roots[packing.parents][:, None]
        in_root = (columns < lengths)[:, None].expand(-1, branches.longest, -1)
        if window is not None:  # from a branch's token i to its root's token j it is length + i − j
            in_root = in_root & ((lengths - columns)[:, None] + torch.arange(branches.longest)[:, None] < window)
        sees = torch.cat([in_root, own.expand(branches.count, -1, -1)], dim=2)
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


def recent(length: int, window: int | None) -> Tensor:
    """(length, length): which tokens j a token i sees, which are those up to itself, or the last `window` of them."""
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    return sees if window is None else sees.triu(1 - window)


def padded_attention(q: Tensor, k: Tensor, v: Tensor, at: Padded, cap: float | None = None) -> Tensor:
    """(N, heads, dim) queries, (N, kv_heads, dim) keys, (N, kv_heads, value_dim) values → (N, heads, value_dim)."""
    group, n = q.shape[1] // k.shape[1], at.split
    (root_q, own_q), (root_k, own_k), (root_v, own_v) = (torch.split(x, [n, len(x) - n]) for x in (q, k, v))
    root_k, root_v = (at.roots.pad(x).transpose(1, 2) for x in (root_k, root_v))
    attended = masked_attention(_stacked(at.roots.pad(root_q), group), root_k, root_v, at.root_sees, cap)
    pieces = [at.roots.unpad(_unstacked(attended, group))]
    if len(own_q):
        k, v = (
            torch.cat([_for_branches(root, at), at.branches.pad(own).transpose(1, 2)], dim=2)
            for root, own in ((root_k, own_k), (root_v, own_v))
        )
        queries = _stacked(at.branches.pad(own_q), group)
        attended = masked_attention(queries, k, v, at.branch_sees, cap)
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
    out, lse = flash_forward(q, k, v, at.alone, causal=True)
    if at.has_branches:
        join(out[n:], lse[:, n:], *flash_forward(q[n:], k[:n], v[:n], at.across, causal=False))
    return out, lse


def ragged_attention_back(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Ragged
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v. With the merged out and lse, the gradients of both parts of a branch just add up."""
    n = at.split
    dq, dk, dv = flash_backward(grad, q, k, v, out, lse, at.alone, causal=True)
    if at.has_branches:
        more = flash_backward(grad[n:], q[n:], k[:n], v[:n], out[n:], lse[:, n:].contiguous(), at.across, causal=False)
        dq[n:] += more[0]
        dk[:n] += more[1]
        dv[:n] += more[2]
    return dq, dk, dv


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, places: tuple[Any, ...], *, causal: bool, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """(N, heads, dim) and the log-sum-exp (heads, N). The last query of a sequence stands at its last key.

    `causal` is for attention without a sliding window: with one, a query sees the last `window` keys up to its place.
    """
    kwargs = _window_sizes(window)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *places, 0.0, causal, False, **kwargs)
    return out, lse


def flash_backward(  # noqa: PLR0913 (as many as its kernel has)
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    places: tuple[Any, ...],
    *,
    causal: bool,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂q, ∂L/∂k, ∂L/∂v of `flash_forward`."""
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device)  # the random state of dropout, which is 0
    kwargs = _window_sizes(window)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, *places, 0.0, causal, unused, unused, **kwargs
    )
    return dq, dk, dv


def _window_sizes(window: int | None) -> dict[str, int]:
    """How many tokens before and after its own place a query of the kernels sees."""
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
