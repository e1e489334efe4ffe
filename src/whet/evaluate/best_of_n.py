"""What best-of-n would give, from more than n samples that exist. Plain Python; knows no models and no files.

Best-of-n draws n completions of a prompt and keeps the one that a proxy reward likes best. How far that pushes the
gold reward, and where it begins to fall, is the over-optimisation curve of Gao et al. 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from whet.evaluate.statistics import Interval, mean_interval


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
