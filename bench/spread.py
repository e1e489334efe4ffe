"""Repeats to one figure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median and how far the repeats lie apart."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The median, the least and the most."""
    return Spread(median=median(values), low=min(values), high=max(values))


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Ratios of neighbours in time: what slows a machine down for a while slows both."""
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} repeats against {len(denominators)}: a pair needs both")
    return spread([above / below for above, below in zip(numerators, denominators, strict=True)])


def timed_median(seconds: Sequence[float]) -> float:
    """The median of a process's steps without its first, which warms up."""
    if len(seconds) < 2:
        raise ValueError("a process needs at least two steps: the first is not counted")
    return median(seconds[1:])
