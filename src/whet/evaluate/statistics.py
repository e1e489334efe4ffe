"""Means with 95 % intervals, and the unbiased pass@k. Plain Python; knows no models and no files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959963984540054  # the 97.5 % quantile of the standard normal

# The 97.5 % quantiles of Student's t with 1, 2, … 30 degrees of freedom.
T_QUANTILES = (
    *(12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139),
    *(2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963),
    *(2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the 95 % interval around it."""

    mean: float
    low: float
    high: float


def wilson(successes: float, trials: int) -> Interval:
    """The score interval of a share (Wilson 1927): never empty, never outside [0, 1], right for few trials.

    `successes` may be a sum of values in [0, 1], such as one pass@k per example: their variance is at most
    p(1 - p) (Bhatia & Davis 2000), so the interval is then too wide rather than too narrow.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson needs 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    share, square = successes / trials, Z * Z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    # At 0 and at 1 the end is exact; rounding must not put it on the wrong side of the mean.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one.

    Unbiased for the chance that k fresh samples hold one. Chen et al. 2021, eq. 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    # The ratio of binomials as a product of c factors below one: nothing overflows.
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of a mean. One value says nothing about its spread: the interval is infinite."""
    if not values:
        raise ValueError("mean_interval needs at least one value")
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(n - 1) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; above 30 degrees by its expansion around the normal one."""
    if freedom < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, got {freedom}")
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    # Abramowitz & Stegun 1964, 26.7.5; the first omitted term is below 1e-7 here.
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
