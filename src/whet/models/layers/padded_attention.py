"""Attention over a packing in plain torch: roots and branches are padded for the attention alone.

Query heads that share a key head stand side by side where a kernel expects time, so that no key is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.layers.packing import Packing


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
