"""Steps of several environments as rows: one for each part of an episode, as the table of algorithms reads them.

Steps are flat, those of one environment one behind the other; a fragment is a range of them. A fragment that was cut,
by a time limit or by the end of the rollout, gets γ·V(s′) added to its last reward: the return of what would follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fragments:
    """(B,) first steps and lengths, and where in (B, T) rows every step stands."""

    starts: Tensor
    lengths: Tensor
    mask: Tensor  # (B, T)

    @classmethod
    def between(cls, ends: Tensor) -> Fragments:
        """Fragments that end with the (n,) steps that are marked, the last one among them."""
        last = ends.nonzero()[:, 0]
        starts = torch.cat([last.new_zeros(1), last[:-1] + 1])
        lengths = last + 1 - starts
        mask = torch.arange(int(lengths.max()), device=ends.device) < lengths[:, None]
        return cls(starts, lengths, mask)

    @property
    def last(self) -> Tensor:
        """(B,): the last step of each."""
        return self.starts + self.lengths - 1

    def rows(self, steps: Tensor) -> Tensor:
        """(n,) numbers of steps as (B, T) rows; 0 where a row has ended."""
        found = steps.new_zeros(self.mask.shape)
        found[self.mask] = steps
        return found

    def flat(self, rows: Tensor) -> Tensor:
        """(B, T) rows as (n,) numbers of steps."""
        return rows[self.mask]
