"""Means with 95 % intervals, unbiased pass@k, maj@k and best-of-n, rank correlation. Plain Python."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from statistics import NormalDist

Z = 1.959963984540054  # the 97.5 % quantile of the standard normal
SUMMED = 1000  # degrees of freedom up to which Student's t is summed; above, it is expanded around the normal


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def flat_metrics(values: Mapping[str, Interval | float | None]) -> dict[str, float]:
    """The metrics `eval/NAME`, with `_low` and `_high` for intervals; None is left out."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Interval):
            flat |= {f"eval/{name}": value.mean, f"eval/{name}_low": value.low, f"eval/{name}_high": value.high}
        elif value is not None:
            flat[f"eval/{name}"] = float(value)
    return flat


def wilson(successes: float, trials: int) -> Interval:
    """The score interval of a share (Wilson 1927): never empty, within [0, 1], valid for few trials.

    `successes` may be a sum of values in [0, 1], such as one pass@k per example: their variance is at most
    p(1 - p) (Bhatia & Davis 2000), so the interval is conservative.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"wilson needs 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    share, square = successes / trials, Z * Z
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    # At 0 and 1 the bound equals the mean; rounding must not put it on the wrong side.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the unbiased estimate from n samples, c of them correct. Chen et al. 2021, eq. 1."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass_at_k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    if n - c < k:
        return 1.0
    # The ratio of binomials as a product of factors below one, which cannot overflow.
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mean_interval(values: Sequence[float], *, comparisons: int = 1) -> Interval:
    """Student's t interval of a mean, infinite for one value; Bonferroni-corrected for several `comparisons`."""
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
    """`paired_means` of shares, each pair measured on the same `trials` examples; within −1 to 1.

    The errors over examples are binomial. Without them, two methods that solve everything would have an interval of no
    width.
    """
    shares = [math.fsum(values) / len(values) for values in (first, second)]
    errors = [binomial_error(share, trials) for share in shares]
    found = paired_means(first, second, errors=errors, comparisons=comparisons)
    return Interval(found.mean, max(-1.0, found.low), min(1.0, found.high))


def paired_means(
    first: Sequence[float], second: Sequence[float], *, errors: Sequence[float] = (), comparisons: int = 1
) -> Interval:
    """The interval of the mean of first − second. Two errors are added in quadrature (Howe 1974):

    - over seeds: Student's t of the paired differences, t · s / √n;
    - over examples: z times the standard `errors` of the two means. All seeds use the same examples, so more seeds do
      not reduce them. That both err on the same examples is not used, so the interval is conservative.

    Bonferroni-corrected for several `comparisons`; infinite for one pair.
    """
    of_seeds = mean_interval([a - b for a, b in zip(first, second, strict=True)], comparisons=comparisons)
    of_examples = NormalDist().inv_cdf(_level(comparisons)) * math.hypot(*errors)
    half = math.hypot(of_seeds.high - of_seeds.mean, of_examples)
    return Interval(of_seeds.mean, of_seeds.mean - half, of_seeds.mean + half)


def standard_error(low: float, high: float, count: int) -> float:
    """The standard error of a mean of `count` values, from its `mean_interval`."""
    return (high - low) / 2 / t_quantile(count - 1)


def binomial_error(share: float, trials: int) -> float:
    """The standard error of a share with one success and one failure added, so that it is positive at 0 and 1."""
    if trials < 1 or not 0 <= share <= 1:
        raise ValueError(f"binomial_error needs a share in [0, 1] and trials >= 1, got {share} of {trials}")
    added = (share * trials + 1) / (trials + 2)
    return math.sqrt(added * (1 - added) / trials)


def clipped(interval: Interval) -> Interval:
    """The interval within [0, 1]."""
    return Interval(interval.mean, max(0.0, interval.low), min(1.0, interval.high))


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, level: float = 0.975) -> float:
    """The quantile of Student's t at `level`, at least one half."""
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
    """Student's t quantile from the normal one. Abramowitz & Stegun 1964, 26.7.5; the error is below 1e-9 here."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def _level(comparisons: int) -> float:
    """The quantile of each two-sided interval at a family-wise 95 % (Bonferroni)."""
    if comparisons < 1:
        raise ValueError(f"comparisons must be at least 1, got {comparisons}")
    return 1 - 0.025 / comparisons


def best_of_n(proxy: Sequence[float], values: Sequence[float], n: int) -> float:
    """The unbiased estimate of the value of best-of-n by `proxy`, from N ≥ n samples; ties are broken at random.

    Σᵢ C(i−1, n−1) / C(N, n) · vᵢ over samples sorted by proxy: sample i is the best of the subsets whose other n − 1
    members come before it.
    """
    count = len(proxy)
    if not 1 <= n <= count or len(values) != count:
        raise ValueError(f"best_of_n needs 1 <= n <= N and N values, got n={n}, N={count} and {len(values)} values")
    order = sorted(range(count), key=proxy.__getitem__)
    total, place = 0.0, 0
    for _, tied in groupby(order, key=proxy.__getitem__):
        members = list(tied)
        # C(i, n) − C(j, n) subsets have their best among the tied samples j + 1 … i, each equally often.
        share = (math.comb(place + len(members), n) - math.comb(place, n)) / math.comb(count, n)
        total += share * math.fsum(values[member] for member in members) / len(members)
        place += len(members)
    return total


def majority_at_k(votes: Sequence[str | None], values: Sequence[float], k: int) -> float:
    """maj@k: the expected value of the answer that most of k samples give, from N ≥ k samples; exact, not simulated.

    The mean over all C(N, k) subsets. None is a sample without an answer, which has no vote; ties are broken at random,
    and without any vote the value is 0. `values` are 1 or 0 for right or wrong; an answer has the mean of its samples.
    Wang et al. 2023 (self-consistency).
    """
    count = len(votes)
    if not 1 <= k <= count or len(values) != count:
        raise ValueError(f"majority_at_k needs 1 <= k <= N and N values, got k={k}, N={count} and {len(values)} values")
    own: dict[str | None, list[float]] = {}
    for vote, value in zip(votes, values, strict=True):
        own.setdefault(vote, []).append(value)
    silent = len(own.pop(None, ()))
    sizes = {vote: len(some) for vote, some in own.items()}
    total = Fraction(0)
    for vote, some in own.items():
        others = [size for other, size in sizes.items() if other != vote]
        worth = math.fsum(some) / len(some)
        total += Fraction(worth) * _wins(len(some), [silent, *others], k) if worth else 0
    return float(total / math.comb(count, k))


def _wins(size: int, others: Sequence[int], k: int) -> Fraction:
    """The subsets of k samples in which an answer of `size` samples has the most votes, a tie of t answers as 1/t.

    `others` are the samples of the other answers; the first of them have no answer and cannot tie.
    """
    won = Fraction(0)
    for most in range(1, min(size, k) + 1):
        ways = {(0, 1): 1}  # (samples of others, answers with the most votes) → subsets
        for place, other in enumerate(others):
            limit = other if place == 0 else min(other, most)
            room = sum(min(later, most) for later in others[place + 1 :])
            more: dict[tuple[int, int], int] = {}
            for (drawn, tied), number in ways.items():
                for chosen in range(max(0, k - most - drawn - room), min(limit, k - most - drawn) + 1):
                    state = drawn + chosen, tied + (place > 0 and chosen == most)
                    more[state] = more.get(state, 0) + number * math.comb(other, chosen)
            ways = more
        won += math.comb(size, most) * sum(Fraction(n, tied) for (drawn, tied), n in ways.items() if drawn == k - most)
    return won


def best_of_n_kl(n: int) -> float:
    """log n − (n − 1)/n: KL(best-of-n ‖ sampler), Stiennon et al. 2020, app. G.3.

    An upper bound where samples repeat: Beirami et al. 2024.
    """
    if n < 1:
        raise ValueError(f"best-of-n needs n >= 1, got {n}")
    return math.log(n) - (n - 1) / n


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's ρ: the correlation of ranks, equal values at the mean of their ranks; None if either is constant."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    one, other = _centred_ranks(first), _centred_ranks(second)
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.sqrt(math.fsum(a * a for a in one) * math.fsum(b * b for b in other))


def _centred_ranks(values: Sequence[float]) -> list[float]:
    """Ranks less their mean."""
    ranks: dict[float, float] = {}
    before = 0
    for value, same in groupby(sorted(values)):
        count = len(list(same))
        ranks[value] = before + (count + 1) / 2
        before += count
    middle = (len(values) + 1) / 2
    return [ranks[value] - middle for value in values]
