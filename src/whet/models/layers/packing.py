"""Padding-free batches: sequences concatenated, with the prompt that a group of them shares stored once.

A sequence is a root, or a branch that continues a root. Only tokens that a trained token depends on are packed: the
last token of a sequence predicts nothing, and a row without trained tokens is left out.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """N tokens of B padded rows: R roots, then S branches in the order of their roots."""

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64: within the token's own sequence
    roots: Tensor  # (R,) int64 on the host: length of each root
    branches: Tensor  # (S,) int64 on the host: length of each branch, may be 0
    parents: Tensor  # (S,) int64 on the host: the root of each branch, ascending
    lengths: Tensor  # (B,) int64: packed tokens of each row, its root included
    places: Tensor  # (B, T) int64: index among the N of token t of row b; 0 if it was left out
    sources: Tensor  # (N,) int64: b · T + t of each packed token, of one of the rows that share it

    def to(self, device: torch.device) -> "Packing":
        """The same on a device, but for what is on the host anyway."""
        names = ("tokens", "positions", "lengths", "places", "sources")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def longest(self) -> int:
        """Length of the longest sequence, root included."""
        ends = torch.cat([self.roots, self.roots[self.parents] + self.branches])
        return int(ends.max()) if len(ends) else 0

    @property
    def is_even(self) -> bool:
        """Whether it is rows of one length that share nothing: then attention needs neither padding nor a mask."""
        return len(self.branches) == 0 and len(self.roots) > 0 and bool((self.roots == self.roots[0]).all())


def pack(tokens: Tensor, mask: Tensor, groups: Tensor | None = None) -> Packing:
    """Packs (B, T) ids; `mask` (B, T) marks trained tokens. Without groups every row is a root.

    Rows of the same (B,) group share a root: they must have the same tokens before their first trained one.
    """
    device, (rows, width) = tokens.device, tokens.shape
    trained = mask.cpu()
    columns = torch.arange(width)
    some = trained.any(dim=1)
    last = torch.where(trained, columns, 0).amax(dim=1)  # the last trained token, not packed itself
    if groups is None:
        owners, first = torch.arange(rows), last
    else:
        _, owners = torch.unique(groups.cpu(), return_inverse=True)
        first = torch.where(some, trained.int().argmax(dim=1), 0)
    count = int(owners.max()) + 1 if rows else 0
    roots = torch.zeros(count, dtype=torch.int64).scatter_reduce(0, owners, first, "amax")
    example = torch.zeros(count, dtype=torch.int64)  # (R,): for each root, a row that contains all of it
    complete = (first == roots[owners]).nonzero()[:, 0]
    example[owners[complete]] = complete
    order = torch.argsort(owners, stable=True) if groups is not None else torch.arange(0)
    branches = (last - first)[order]

    ends = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat([roots, branches]).cumsum(0)])
    in_root = columns < roots[:, None]
    in_branch = (columns >= first[order, None]) & (columns < last[order, None])
    flat = torch.arange(rows * width).view(rows, width)
    sources = torch.cat([flat[example][in_root], flat[order][in_branch]])
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
