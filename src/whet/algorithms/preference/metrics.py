"""Metrics of preference training: implicit rewards and margins per pair, which add over micro-batches and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def wins(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(P,): 1 where the chosen has more reward, ½ where both have the same, 0 otherwise; their mean is the accuracy.

    A tie is half: at the first step policy and reference agree, and a coin would be right as often.
    """
    return ((chosen > rejected).to(chosen.dtype) + (chosen >= rejected).to(chosen.dtype)) / 2


def margins(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(P,): by how much the chosen has more reward."""
    return chosen - rejected
