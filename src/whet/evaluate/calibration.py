"""Shares of right decisions, alone and by group, and whether stated probabilities come true. Plain Python."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from whet.evaluate.statistics import Interval, wilson


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Decisions whose stated probability lies in [low, high)."""

    low: float
    high: float
    count: int
    predicted: float  # the mean of what was stated
    observed: Interval  # the share that came true


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Decisions on examples whose value lies in [low, high], both of which occur."""

    low: float
    high: float
    count: int
    accuracy: Interval


def calibration(predicted: Sequence[float], outcomes: Sequence[float], edges: Sequence[float]) -> tuple[Bin, ...]:
    """The bins that hold something; outcomes are in [0, 1], edges ascend, and the last bin holds its upper edge too."""
    members: list[list[int]] = [[] for _ in edges[1:]]
    for index, value in enumerate(predicted):
        if not edges[0] <= value <= edges[-1]:
            raise ValueError(f"a stated probability of {value} lies outside the bins from {edges[0]} to {edges[-1]}")
        members[min(bisect_right(edges, value), len(members)) - 1].append(index)
    return tuple(
        Bin(
            low=edges[number],
            high=edges[number + 1],
            count=len(some),
            predicted=math.fsum(predicted[index] for index in some) / len(some),
            observed=share([outcomes[index] for index in some]),
        )
        for number, some in enumerate(members)
        if some
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """Σ n_b/n · |predicted_b − observed_b|: the expected calibration error. Naeini et al. 2015; Guo et al. 2017."""
    total = sum(some.count for some in bins)
    return math.fsum(some.count / total * abs(some.predicted - some.observed.mean) for some in bins)


def quartiles(values: Sequence[float], outcomes: Sequence[float]) -> tuple[Slice, ...]:
    """Accuracy by quarter of the values, lowest first; equal values stay together, so there may be fewer than four."""
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
                accuracy=share([outcomes[index] for index in some]),
            )
        )
    return tuple(slices)


def share(outcomes: Sequence[float]) -> Interval:
    """The mean of independent values in [0, 1], with Wilson's interval."""
    return wilson(math.fsum(outcomes), len(outcomes))


def clustered_share(clusters: Sequence[Sequence[float]]) -> Interval:
    """The mean over all values in [0, 1], with an interval for values that are alike within a cluster.

    Wilson's, for as many independent values as would have the variance that is seen between clusters (a ratio
    estimate's, Cochran 1977, §6.3; Kish 1965 calls the quotient the design effect), never more than there are values.
    """
    clusters = [cluster for cluster in clusters if cluster]
    total = sum(map(len, clusters))
    if not total:
        raise ValueError("a share needs at least one value")
    mean = math.fsum(math.fsum(cluster) for cluster in clusters) / total
    if mean in (0.0, 1.0) or len(clusters) == 1:  # nothing is seen of the variance: count clusters, which is safe
        return wilson(mean * len(clusters), len(clusters))
    squares = math.fsum((math.fsum(cluster) - mean * len(cluster)) ** 2 for cluster in clusters)
    variance = squares / total**2 * len(clusters) / (len(clusters) - 1)
    independent = total if variance == 0 else min(total, max(1, int(mean * (1 - mean) / variance)))
    found = wilson(mean * independent, independent)
    return Interval(mean, found.low, found.high)


def half_for_ties(first: float, second: float) -> float:
    """1 where the first is larger, 0 where the second is, ½ where they are equal."""
    return 0.5 if first == second else float(first > second)


def area_under_curve(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """P(a positive scores above a negative) + ½ P(equal): the area under the ROC curve. Mann & Whitney 1947.

    From ranks, so linear in all but the sorting.
    """
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
