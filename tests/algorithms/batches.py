"""Random batches with what goes wrong in practice: ragged rows, gaps, groups without signal, rows cut off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GROUPS, GROUP, WIDTH, MAX_TOKENS = 5, 4, 11, 8

# Kinks in log ρ of one token: clips at ±0.2 and 0.28, the bound of 3, the cap of 5, and ±0.4 in logs.
TOKEN_EDGES = (log(0.8), log(1.2), log(1.28), log(3.0), log(5.0), -0.4, 0.4)


@dataclass(frozen=True)
class Case:
    """What a step is computed from; rewards, counts, greedy are (P, G) or (P,), the rest (B, T)."""

    rewards: Array
    counts: NDArray[np.int64]
    greedy: Array
    history: Array
    new: Array
    old: Array
    ref: Array
    sampled: Array
    values: Array
    entropies: Array
    tokens: NDArray[np.int64]
    mask: NDArray[np.bool_]


def random_case(seed: int) -> Case:
    """Group 0 is graded, 1 has equal rewards, 2 only zeros, 3 is right or wrong, 4 has negative rewards too."""
    rng = np.random.default_rng(seed)
    rewards = rng.choice([0.0, 0.25, 0.5, 1.0], (GROUPS, GROUP))
    rewards[0] = rng.permutation([0.0, 0.25, 0.5, 1.0])
    rewards[1] = 0.7
    rewards[2] = 0.0
    rewards[3] = rng.permutation([0.0, 1.0, 1.0, 0.0])
    rewards[4] = rng.normal(0.0, 1.0, GROUP)
    mask, counts = _masks(rng)
    old = rng.normal(-1.5, 0.5, mask.shape)
    return Case(
        rewards=rewards,
        counts=counts,
        greedy=rng.choice([0.0, 0.5, 1.0], GROUPS),
        history=rng.normal(0.5, 0.2, 3),
        new=old + _log_ratios(rng, mask),
        old=old,
        ref=old + rng.normal(0.0, 0.4, mask.shape),
        sampled=old + rng.normal(0.0, 0.6, mask.shape) * rng.choice([0.01, 1.0], (len(mask), 1)),
        values=rng.normal(0.3, 0.5, mask.shape),
        entropies=rng.uniform(0.1, 1.0, mask.shape),
        tokens=rng.integers(0, 2, mask.shape),  # of two ids, so that rollouts begin alike
        mask=mask,
    )


def never_negative(case: Case) -> Case:
    """The same with rewards that a share of right answers can be made of."""
    return replace(case, rewards=np.abs(case.rewards))


def _masks(rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Prompts of 1 to 3 tokens, then completions of 1 to 8; some have a gap; one row was cut off and trains nothing."""
    mask = np.zeros((GROUPS * GROUP, WIDTH), dtype=bool)
    for row in mask:
        start = int(rng.integers(1, 4))
        row[start : start + int(rng.integers(1, MAX_TOKENS + 1))] = True
    mask[0] = [t == 2 for t in range(WIDTH)]  # one token
    mask[5] = [t == WIDTH - 1 for t in range(WIDTH)]  # one token, at the very end
    mask[3] = mask[13] = [1 <= t < 8 and t not in (3, 4) for t in range(WIDTH)]  # a tool answered in the middle
    counts = mask.sum(axis=1)
    mask[14] = False  # cut off at the limit: it was sampled and judged, but is not trained
    counts[14] = MAX_TOKENS
    return mask, counts.reshape(GROUPS, GROUP)


def _log_ratios(rng: np.random.Generator, mask: NDArray[np.bool_]) -> Array:
    """Rows near, a little off and far off the old policy, no token and no row near a kink."""
    drawn = np.empty(mask.shape)
    for b, trained in enumerate(mask):
        while True:
            drawn[b] = rng.normal(0.0, rng.choice([1e-4, 0.15, 0.5, 1.5]), mask.shape[1])
            mean = float(drawn[b][trained].mean()) if trained.any() else 0.0
            # The clip of a whole sequence sits at log(1 − 3e-4) and log(1 + 4e-4).
            if (abs(mean) < 1.5e-4 or abs(mean) > 1e-3) and _smooth(drawn[b]):
                break
    return drawn


def _smooth(log_ratios: Array) -> bool:
    return all(abs(value - edge) > 1e-3 for value in log_ratios for edge in TOKEN_EDGES)
