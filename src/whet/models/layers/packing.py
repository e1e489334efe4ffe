"""Sequences one behind the other instead of padded, and a prompt that several of them share only once.

A sequence is a root, or a branch that goes on where its root ends. Only what a trained token depends on is packed: the
last token of a sequence predicts nothing, and a row without trained tokens is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """N tokens: the roots, then the branches in the order of their roots."""

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64: within the token's own sequence
    roots: Tensor  # (R,) int64 on the host: tokens of each root
    branches: Tensor  # (S,) int64 on the host: tokens of each branch, which may be none
    parents: Tensor  # (S,) int64 on the host: the root of each branch, ascending
    lengths: Tensor  # (B,) int64: how many tokens of each row were packed, its root included
    places: Tensor  # (B, T) int64: where token t of row b stands among the N; 0 where it was left out
    sources: Tensor  # (N,) int64: one of the b·T + t that a token stands for

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        ends = torch.cat([self.roots, self.roots[self.parents] + self.branches])
        return int(ends.max()) if len(ends) else 0


def pack(tokens: Tensor, mask: Tensor, groups: Tensor | None = None) -> Packing:
    """(B, T) ids and mask → a packing; rows of the same (B,) group have the same tokens before their first trained one.

    Without groups every row is a root.
    """
    device, (rows, width) = tokens.device, tokens.shape
    trained = mask.cpu()
    columns = torch.arange(width)
    some = trained.any(dim=1)
    last = torch.where(trained, columns, 0).amax(dim=1)  # the last trained token: what it depends on stands before it
    if groups is None:
        owners, first = torch.arange(rows), last
    else:
        _, owners = torch.unique(groups.cpu(), return_inverse=True)
        first = torch.where(some, trained.int().argmax(dim=1), 0)
    count = int(owners.max()) + 1 if rows else 0
    roots = torch.zeros(count, dtype=torch.int64).scatter_reduce(0, owners, first, "amax")
    speaker = torch.zeros(count, dtype=torch.int64)  # a row of each root that has all of it
    whole = (first == roots[owners]).nonzero()[:, 0]
    speaker[owners[whole]] = whole
    order = torch.argsort(owners, stable=True) if groups is not None else torch.arange(0)
    branches = (last - first)[order]

    ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat([roots, branches]).cumsum(0)])
    in_root = columns < roots[:, None]
    in_branch = (columns >= first[order, None]) & (columns < last[order, None])
    flat = torch.arange(rows * width).view(rows, width)
    sources = torch.cat([flat[speaker][in_root], flat[order][in_branch]])
    begins = torch.zeros(rows, dtype=torch.int64)
    begins[order] = ends[count:-1]
    places = torch.where(columns < first[:, None], ends[owners][:, None] + columns, 0)
    if len(order):
        places = torch.where(
            (columns >= first[:, None]) & (columns < last[:, None]), (begins - first)[:, None] + columns, places
        )
    sources = sources.to(device)
    return Packing(
        tokens=tokens.flatten()[sources],
        positions=sources % width,
        roots=roots,
        branches=branches,
        parents=owners[order],
        lengths=last.to(device),
        places=places.to(device),
        sources=sources,
    )
