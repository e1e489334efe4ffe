"""Means with 95 % intervals, and the unbiased pass@k. Plain Python; knows no models and no files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from statistics import NormalDist

Z = 1.959963984540054  # the 97.5 % quantile of the standard normal
SUMMED = 1000  # degrees of freedom up to which the t distribution is summed; above, it is expanded around the normal


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


def mean_interval(values: Sequence[float], *, comparisons: int = 1) -> Interval:
    """Student's t interval of a mean. One value says nothing about its spread: the interval is infinite.

    With `comparisons` such intervals, all of them hold together with 95 % (Bonferroni).
    """
    if not values:
        raise ValueError("mean_interval needs at least one value")
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = t_quantile(n - 1, _level(comparisons)) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def paired_interval(first: Sequence[float], second: Sequence[float], *, trials: int, comparisons: int = 1) -> Interval:
    """The interval of the mean of first − second, each pair of shares measured on the same `trials` examples.

    It covers two errors, added in squares (Howe 1974; each alone would be the interval if the other were zero):

    - that of few seeds: Student's t of the paired differences, t · s / √n;
    - that of few examples: z times the binomial error of either share. Every seed is measured on the same examples,
      so more seeds do not make it smaller. It is what remains when all differences are equal, as between two methods
      that solve everything: a t interval alone would then have no width and claim certainty. That both shares err on
      the same examples is not made use of, which makes the interval too wide rather than too narrow.

    With `comparisons` such intervals, all of them hold together with 95 % (Bonferroni). One pair says nothing about the
    spread: the interval is then everything that a difference of shares can be, −1 to 1.
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    of_seeds = mean_interval(differences, comparisons=comparisons)
    shares = [math.fsum(values) / len(values) for values in (first, second)]
    of_examples = math.hypot(*(binomial_error(share, trials) for share in shares))
    half = math.hypot(of_seeds.high - of_seeds.mean, NormalDist().inv_cdf(_level(comparisons)) * of_examples)
    return Interval(of_seeds.mean, max(-1.0, of_seeds.mean - half), min(1.0, of_seeds.mean + half))


def binomial_error(share: float, trials: int) -> float:
    """The standard error of a share, computed with a success and a failure more, so that 0 and 1 are not certain."""
    if trials < 1 or not 0 <= share <= 1:
        raise ValueError(f"binomial_error needs a share in [0, 1] and trials >= 1, got {share} of {trials}")
    added = (share * trials + 1) / (trials + 2)
    return math.sqrt(added * (1 - added) / trials)


def clipped(interval: Interval) -> Interval:
    """The part of the interval in which a share can be."""
    return Interval(interval.mean, max(0.0, interval.low), min(1.0, interval.high))


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, level: float = 0.975) -> float:
    """The value that Student's t stays below with probability `level`, at least one half."""
    if freedom < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom, got {freedom}")
    if not 0.5 <= level < 1:
        raise ValueError(f"t_quantile needs 0.5 <= level < 1, got {level}")
    if freedom > SUMMED:
        return _t_expansion(freedom, NormalDist().inv_cdf(level))
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / √freedom
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _t_inside(middle, freedom) < 2 * level - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_inside(angle: float, freedom: int) -> float:
    """P(|T| ≤ √freedom · tan(angle)): a finite sum of positive terms. Abramowitz & Stegun 1964, 26.7.3 and 26.7.4."""
    square = math.cos(angle) ** 2
    odd = freedom % 2
    terms = [math.cos(angle) if odd else 1.0] if freedom > 1 else []
    for k in range(2 + odd, freedom - 1, 2):
        terms.append(terms[-1] * square * (k - 1) / k)
    inside = math.sin(angle) * math.fsum(terms)
    return 2 / math.pi * (angle + inside) if odd else inside


def _t_expansion(freedom: int, z: float) -> float:
    """Student's t quantile from the normal one. Abramowitz & Stegun 1964, 26.7.5; the rest is below 1e-9 here."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def _level(comparisons: int) -> float:
    """The quantile at which each of so many two-sided intervals ends, so that all hold together with 95 %."""
    if comparisons < 1:
        raise ValueError(f"an interval is one of at least one comparison, got {comparisons}")
    return 1 - 0.025 / comparisons


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """Best-of-n by the proxy: means over prompts with 95 % intervals."""

    n: int
    kl: float  # from the sampler, nats per completion
    proxy: Interval
    gold: Interval


def best_of_n_curve(
    scores_proxy: Sequence[Sequence[float]], scores_gold: Sequence[Sequence[float]], ns: Sequence[int]
) -> list[BestOf]:
    """(P, N) scores of N samples of each prompt → one point for each n, none above the smallest N."""
    if not scores_proxy:
        raise ValueError("best_of_n_curve needs at least one prompt")
    pairs = list(zip(scores_proxy, scores_gold, strict=True))
    return [
        BestOf(
            n=n,
            kl=best_of_n_kl(n),
            proxy=mean_interval([best_of_n(proxy, proxy, n) for proxy, _ in pairs]),
            gold=mean_interval([best_of_n(proxy, gold, n) for proxy, gold in pairs]),
        )
        for n in ns
    ]


def best_of_n(proxy: Sequence[float], values: Sequence[float], n: int) -> float:
    """The mean, over all n of the N samples, of the value of the one with the highest proxy; ties are drawn by lot.

    Σᵢ C(i−1, n−1) / C(N, n) · vᵢ with samples in the order of their proxy: sample i is the best of those subsets whose
    other n − 1 members come before it. Unbiased for n fresh samples, as pass@k is.
    """
    count = len(proxy)
    if not 1 <= n <= count or len(values) != count:
        raise ValueError(f"best_of_n needs 1 <= n <= N and N values, got n={n}, N={count} and {len(values)} values")
    order = sorted(range(count), key=proxy.__getitem__)
    total, place = 0.0, 0
    for _, tied in groupby(order, key=proxy.__getitem__):
        members = list(tied)
        # C(i, n) − C(j, n) subsets have their best among the samples j + 1 … i, each of them equally often.
        share = (math.comb(place + len(members), n) - math.comb(place, n)) / math.comb(count, n)
        total += share * math.fsum(values[member] for member in members) / len(members)
        place += len(members)
    return total


def best_of_n_kl(n: int) -> float:
    """log n − (n − 1)/n: KL(best-of-n ‖ sampler) where no two samples are equal, and never less than it elsewhere.

    Stiennon et al. 2020, app. G.3; that it is a bound where samples repeat: Beirami et al. 2024.
    """
    if n < 1:
        raise ValueError(f"best-of-n needs n >= 1, got {n}")
    return math.log(n) - (n - 1) / n
