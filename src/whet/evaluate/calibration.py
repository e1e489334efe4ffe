"""Calibration, accuracy by quartile, and intervals for clustered data. Plain Python."""

import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from whet.evaluate.statistics import Interval, t_quantile, wilson


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Predictions in [low, high)."""

    low: float
    high: float
    count: int
    predicted: float  # mean prediction
    observed: Interval  # share that came true


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Decisions on examples with a value in [low, high]."""

    low: float
    high: float
    count: int
    accuracy: Interval


def calibration(
    predicted: Sequence[float], outcomes: Sequence[float], edges: Sequence[float], clusters: Sequence[Hashable]
) -> tuple[Bin, ...]:
    """The non-empty bins; outcomes are in [0, 1], edges ascend, and the last bin includes its upper edge.

    Intervals account for correlation within clusters.
    """
    members: list[list[int]] = [[] for _ in edges[1:]]
    for index, value in enumerate(predicted):
        if not edges[0] <= value <= edges[-1]:
            raise ValueError(f"the prediction {value} is outside the bins from {edges[0]} to {edges[-1]}")
        members[min(bisect_right(edges, value), len(members)) - 1].append(index)
    return tuple(
        Bin(
            low=edges[number],
            high=edges[number + 1],
            count=len(some),
            predicted=math.fsum(predicted[index] for index in some) / len(some),
            observed=share_by_cluster([clusters[index] for index in some], [outcomes[index] for index in some]),
        )
        for number, some in enumerate(members)
        if some
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """Σ n_b/n · |predicted_b − observed_b|: the expected calibration error. Naeini et al. 2015; Guo et al. 2017."""
    total = sum(some.count for some in bins)
    return math.fsum(some.count / total * abs(some.predicted - some.observed.mean) for some in bins)


def quartiles(values: Sequence[float], outcomes: Sequence[float], clusters: Sequence[Hashable]) -> tuple[Slice, ...]:
    """Accuracy by quartile of the values, lowest first; equal values stay together, so there may be fewer than four."""
    if not values:
        return ()
    ranked = sorted(values)
    cuts = [ranked[len(ranked) * quarter // 4] for quarter in (1, 2, 3)]
    order = sorted(range(len(values)), key=lambda index: values[index])
    slices = []
    for _, group in groupby(order, key=lambda index: bisect_right(cuts, values[index])):
        some = list(group)
        slices.append(
            Slice(
                low=values[some[0]],
                high=values[some[-1]],
                count=len(some),
                accuracy=share_by_cluster([clusters[index] for index in some], [outcomes[index] for index in some]),
            )
        )
    return tuple(slices)


def clustered(keys: Sequence[Hashable], values: Sequence[float]) -> dict[Any, list[float]]:
    """Key → its values, in order of appearance."""
    together: dict[Any, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        together.setdefault(key, []).append(value)
    return together


def share_by_cluster(clusters: Sequence[Hashable], outcomes: Sequence[float]) -> Interval:
    """The mean over all values in [0, 1], with an interval for values correlated within clusters."""
    return share_of_sums([(math.fsum(own), len(own)) for own in clustered(clusters, outcomes).values()])


def mean_by_cluster(clusters: Sequence[Hashable], values: Sequence[float]) -> Interval:
    """The mean over all values, with Student's t interval over clusters; infinite for one cluster."""
    return mean_of_sums([(math.fsum(cluster), len(cluster)) for cluster in clustered(clusters, values).values()])


def mean_of_sums(clusters: Sequence[tuple[float, int]]) -> Interval:
    """As `mean_by_cluster`, from the sum and the number of each cluster's values."""
    if not clusters:
        raise ValueError("a mean needs at least one value")
    mean = math.fsum(total for total, _ in clusters) / sum(count for _, count in clusters)
    if len(clusters) == 1:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(len(clusters) - 1) * math.sqrt(_variance(clusters, mean))
    return Interval(mean, mean - half, mean + half)


def share_of_sums(clusters: Sequence[tuple[float, int]]) -> Interval:
    """As `share_by_cluster`, from the sum and the number of each cluster's values.

    Wilson's interval at the effective sample size by the variance between clusters (Kish's design effect, 1965).
    """
    clusters = [(total, count) for total, count in clusters if count]
    count = sum(size for _, size in clusters)
    if not count:
        raise ValueError("a share needs at least one value")
    successes = math.fsum(total for total, _ in clusters)
    if count == len(clusters):
        return wilson(successes, count)
    mean = successes / count
    if mean in (0.0, 1.0) or len(clusters) == 1:  # no variance estimate: count clusters, which is conservative
        return wilson(mean * len(clusters), len(clusters))
    variance = _variance(clusters, mean)
    independent = count if variance == 0 else min(count, max(1, int(mean * (1 - mean) / variance)))
    found = wilson(mean * independent, independent)
    return Interval(mean, found.low, found.high)


def _variance(clusters: Sequence[tuple[float, int]], mean: float) -> float:
    """The variance of the mean of all values, a ratio estimate over clusters. Cochran 1977, §6.3."""
    squares = math.fsum((total - mean * size) ** 2 for total, size in clusters)
    count = sum(size for _, size in clusters)
    return squares / count**2 * len(clusters) / (len(clusters) - 1)


def half_for_ties(first: float, second: float) -> float:
    return 0.5 if first == second else float(first > second)


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """AUC = P(a positive scores above a negative) + ½ P(equal), by ranks. Mann & Whitney 1947."""
    if not positives or not negatives:
        raise ValueError("the area under a curve needs values of both kinds")
    marked = sorted([(value, True) for value in positives] + [(value, False) for value in negatives])
    wins, below = 0.0, 0
    for _, group in groupby(marked, key=lambda pair: pair[0]):
        kinds = [kind for _, kind in group]
        here = sum(kinds)
        wins += here * (below + (len(kinds) - here) / 2)
        below += len(kinds) - here
    return wins / (len(positives) * len(negatives))
