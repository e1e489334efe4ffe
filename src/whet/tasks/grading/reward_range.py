"""The range of valid rewards: numbers that training can square and add up."""

from __future__ import annotations

import math

from whet.records import LARGEST_REWARD


def is_reward(value: float) -> bool:
    """Whether it is finite and not larger in size than `LARGEST_REWARD`."""
    return abs(value) <= LARGEST_REWARD


def too_large(value: float) -> str:
    """What to add to a sentence about a number that may not be a reward; nothing if it is not even finite."""
    return (
        f", beyond ±{LARGEST_REWARD:g}, above which training overflows: scale it down" if math.isfinite(value) else ""
    )
