"""The tensors that both libraries are given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

LENGTHS = (5, 1, 7, 3, 6, 2, 7, 4)  # ragged, with a completion of one token
GROUP = 4  # rollouts per prompt


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Completions only, right-padded: (B, T) in float64, except advantages (B,) and mask (B, T) bool."""

    mask: Tensor
    advantages: Tensor
    logprobs: Tensor
    logprobs_old: Tensor
    logprobs_ref: Tensor
    logprobs_sampled: Tensor
    entropies: Tensor

    def rows(self, rows: slice) -> Tensors:
        """Some of the sequences."""
        return Tensors(**{name: value[rows] for name, value in vars(self).items()})

    def having(self, **changed: Any) -> Tensors:
        """The same with other values."""
        return replace(self, **changed)


def random_tensors(*, drift: float = 0.4, mismatch: float = 0.2, seed: int = 0) -> Tensors:
    """Ratios on both sides of every clip; noise also in the padding, where it must not matter."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))

    def normal(scale: float) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    old = -torch.rand(shape, generator=generator, dtype=torch.float64) * 3 - 0.05
    return Tensors(
        mask=torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None],
        advantages=torch.randn(shape[0], generator=generator, dtype=torch.float64),
        logprobs=old + normal(drift),
        logprobs_old=old,
        logprobs_ref=old + normal(0.5),
        logprobs_sampled=old + normal(mismatch),
        entropies=torch.rand(shape, generator=generator, dtype=torch.float64) * 2,
    )
