"""Intervals and pass@k against enumeration, integration, simulation and numbers worked by hand."""

import itertools
import math
import random

import mpmath  # torch needs it
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluate.rank_oracle import spearman
from whet.evaluate import statistics
from whet.evaluate.statistics import (
    Interval,
    binomial_error,
    clipped,
    mean_interval,
    paired_interval,
    pass_at_k,
    rank_correlation,
    t_quantile,
    wilson,
)


def test_wilson_equals_the_textbook_number():
    # 8 of 10: centre (0.8 + z²/20) / (1 + z²/10) = 0.71673, half-width 0.22659.
    interval = wilson(8, 10)
    assert interval.mean == 0.8
    assert interval.low == pytest.approx(0.49016, abs=1e-5)
    assert interval.high == pytest.approx(0.94332, abs=1e-5)


@given(trials=st.integers(1, 5000), share=st.floats(0, 1))
def test_wilson_ends_solve_the_score_equation(trials, share):
    """The defining property: at an end p, |p̂ - p| is z standard errors computed at p itself."""
    successes = round(share * trials)
    interval = wilson(successes, trials)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    for end in (interval.low, interval.high):
        if 1e-9 < end < 1 - 1e-9:
            z = abs(interval.mean - end) / math.sqrt(end * (1 - end) / trials)
            assert z == pytest.approx(1.959964, rel=1e-6)


def test_wilson_never_claims_certainty():
    assert wilson(0, 20).low == 0
    assert wilson(0, 20).high > 0.15
    assert wilson(20, 20).low < 0.85
    assert wilson(20, 20).high == 1
    for trials in range(1, 200):  # also where the last bit of centre and half-width would say otherwise
        assert (wilson(0, trials).low, wilson(trials, trials).high) == (0, 1)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_wilson_covers_about_95_percent(p):
    """Exact coverage: the binomial probability of the outcomes whose interval holds p."""
    n = 100
    covered = sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1) if wilson(c, n).low <= p <= wilson(c, n).high
    )
    assert 0.93 <= covered <= 0.98


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes, trials):
    with pytest.raises(ValueError, match="wilson needs"):
        wilson(successes, trials)


def test_pass_at_k_equals_enumeration():
    """Over all k-subsets of n samples, the share that holds a right one."""
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)  # 3 of the 6 pairs hold the right one
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # 1 of the 10 triples has only wrong ones


def test_pass_at_k_is_unbiased():
    """Weighted with the binomial chance of c, it gives 1 - (1-p)^k exactly."""
    n, k, p = 10, 4, 0.13
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_is_stable_for_many_samples():
    exact = 1 - math.comb(9_990, 100) / math.comb(10_000, 100)  # Python's integers do not overflow
    assert pass_at_k(10_000, 10, 100) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="pass_at_k needs"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize("freedom", [*range(1, 41), 60, 120, 1000])
def test_t_quantile_leaves_two_and_a_half_percent_above(freedom):
    """An independent oracle: Simpson's rule on the density, between 0 and the quantile."""
    q, n = t_quantile(freedom), 4_000
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    h = q / n
    weights = [1, *(4 if i % 2 else 2 for i in range(1, n)), 1]
    density = (scale * (1 + (i * h) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(n + 1))
    area = h / 3 * sum(w * d for w, d in zip(weights, density, strict=True))
    assert area == pytest.approx(0.475, abs=5e-8)  # six decimals


def test_t_quantile_decreases_towards_the_normal_one():
    values = [t_quantile(freedom) for freedom in range(1, 400)]
    assert values == sorted(values, reverse=True)
    assert t_quantile(10**9) == pytest.approx(1.959964, abs=1e-6)


# Printed tables of Student's t: degrees of freedom, level, quantile.
PRINTED = [
    *((1, 0.9, 3.078), (1, 0.995, 63.657), (1, 0.9995, 636.619), (2, 0.95, 2.920), (2, 0.995, 9.925)),
    *((3, 0.99, 4.541), (5, 0.9995, 6.869), (7, 0.9, 1.415), (10, 0.995, 3.169), (15, 0.75, 0.691)),
    *((20, 0.999, 3.552), (30, 0.95, 1.697), (60, 0.99, 2.390), (120, 0.995, 2.617)),
]


@pytest.mark.parametrize(("freedom", "level", "quantile"), PRINTED)
def test_t_quantile_equals_the_printed_tables(freedom, level, quantile):
    assert t_quantile(freedom, level) == pytest.approx(quantile, abs=5.1e-4)


@pytest.mark.parametrize("level", [0.5, 0.6, 0.975, 1 - 0.025 / 8, 1 - 0.025 / 120, 1 - 1e-6])
def test_t_quantile_equals_the_closed_forms(level):
    """With one degree the distribution is Cauchy's; with two its quantile is a root (Shaw 2006)."""
    assert t_quantile(1, level) == pytest.approx(math.tan(math.pi * (level - 0.5)), rel=1e-9, abs=1e-12)
    assert t_quantile(2, level) == pytest.approx((2 * level - 1) / math.sqrt(2 * level * (1 - level)), rel=1e-9)


@pytest.mark.parametrize("level", [0.6, 0.975, 0.9995, 1 - 1e-5])
def test_the_sum_and_the_expansion_of_t_meet(level):
    """The quantile is smooth in 1 / freedom: across the seam it goes on as a straight line does."""
    before, last, after = (t_quantile(freedom, level) for freedom in (999, 1000, 1001))
    assert last - after == pytest.approx((before - last) * 999 / 1001, rel=1e-4)


@pytest.mark.parametrize("level", [0.7, 0.9995])
def test_the_expansion_of_t_has_the_coefficients_of_the_exact_quantile(level, monkeypatch):
    """Asked of the exact quantile at thousands of degrees, in sixty digits: t(f) = z + c₁/f + c₂/f² + …"""
    mp = mpmath.mp.clone()
    mp.dps = 60
    z = mp.sqrt(2) * mp.erfinv(2 * mp.mpf(level) - 1)

    def quantile(freedom):
        scale = mp.exp(mp.loggamma((freedom + 1) / 2) - mp.loggamma(freedom / 2)) / mp.sqrt(freedom * mp.pi)

        def density(x):
            return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

        q = z
        for _ in range(4):  # Newton: each step doubles the digits
            q -= (mp.quad(density, [0, q]) - (mp.mpf(level) - 0.5)) / density(q)
        return q

    degrees = [mp.mpf(1000) * k for k in range(1, 9)]
    powers = mp.matrix([[f**-k for k in range(1, 9)] for f in degrees])
    exact = mp.lu_solve(powers, mp.matrix([quantile(f) - z for f in degrees]))
    monkeypatch.setattr(statistics, "SUMMED", 0)
    for freedom in (1, 2, 3, 4):  # four sums of the four terms: they agree only if each of them does
        wanted = z + sum(exact[k] / freedom ** (k + 1) for k in range(4))
        assert t_quantile.__wrapped__(freedom, level) == pytest.approx(float(wanted), rel=1e-8)


@pytest.mark.parametrize(("freedom", "level"), [(0, 0.975), (3, 1.0), (3, 0.4)])
def test_t_quantile_refuses_what_has_none(freedom, level):
    with pytest.raises(ValueError, match="needs"):
        t_quantile(freedom, level)


def test_mean_interval_by_hand():
    # 1, 2, 3: mean 2, deviation 1, standard error 1/√3, t(2) = 4.302653.
    interval = mean_interval([1, 2, 3])
    assert interval.mean == 2
    assert interval.high - 2 == pytest.approx(4.302653 / math.sqrt(3))
    assert 2 - interval.low == pytest.approx(4.302653 / math.sqrt(3))


def test_mean_interval_covers_95_percent_in_simulation():
    draw = random.Random(0)
    trials = 4000
    hits = 0
    for _ in range(trials):
        interval = mean_interval([draw.gauss(3, 2) for _ in range(5)])
        hits += interval.low <= 3 <= interval.high
    assert hits / trials == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


def test_mean_interval_of_one_value_is_infinite_and_of_none_is_an_error():
    assert mean_interval([7.0]) == Interval(7.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])


def test_several_intervals_are_wider_by_bonferroni():
    # 1, 2, 3 as one of 5 intervals: each is a 99 % interval, t(2) at 99.5 % = 9.924843.
    assert mean_interval([1, 2, 3], comparisons=5).high - 2 == pytest.approx(9.924843 / math.sqrt(3), rel=1e-6)
    with pytest.raises(ValueError, match="comparisons must be at least 1"):
        mean_interval([1, 2, 3], comparisons=0)


def test_clipped_is_the_part_that_a_share_can_be():
    assert clipped(Interval(0.9, 0.7, 1.1)) == Interval(0.9, 0.7, 1.0)
    assert clipped(Interval(0.1, -math.inf, 0.3)) == Interval(0.1, 0.0, 0.3)


def test_binomial_error_by_hand_and_never_zero():
    assert binomial_error(0.5, 98) == pytest.approx(math.sqrt(0.25 / 98))  # (49 + 1) / (98 + 2) is one half again
    assert binomial_error(1.0, 8) == pytest.approx(math.sqrt(0.9 * 0.1 / 8))  # 9 of 10
    assert binomial_error(0.0, 8) == pytest.approx(binomial_error(1.0, 8))
    for share, trials in ((1.2, 8), (-0.1, 8), (0.5, 0)):
        with pytest.raises(ValueError, match="binomial_error needs"):
            binomial_error(share, trials)


def test_paired_interval_by_hand():
    # Differences 0.1, 0.2, 0.3: mean 0.2, t part 4.302653 · 0.1 / √3; shares 0.5 and 0.3 of 98 examples.
    interval = paired_interval([0.4, 0.5, 0.6], [0.3, 0.3, 0.3], trials=98)
    seeds = 4.302653 * 0.1 / math.sqrt(3)
    error = math.sqrt(0.25 / 98 + 0.304 * 0.696 / 98)  # (29.4 + 1) / 100 = 0.304
    assert interval.mean == pytest.approx(0.2)
    assert interval.high - 0.2 == pytest.approx(math.hypot(seeds, 1.959964 * error), rel=1e-6)
    assert 0.2 - interval.low == pytest.approx(interval.high - 0.2)


def test_equal_seeds_leave_the_error_of_the_examples():
    """A t interval alone would have no width: two perfect methods on 8 examples would be equal for certain."""
    same = paired_interval([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], trials=8)
    assert same.high == -same.low == pytest.approx(1.959964 * math.sqrt(2) * math.sqrt(0.09 / 8), rel=1e-6)
    # One wrong answer more in every seed, always the same one, is nothing to build on; half of all answers is.
    assert paired_interval([1.0] * 3, [0.875] * 3, trials=8).low < 0
    assert paired_interval([1.0] * 3, [0.5] * 3, trials=200).low > 0.4


def test_one_pair_says_nothing():
    assert paired_interval([1.0], [0.0], trials=1000) == Interval(1.0, -1.0, 1.0)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6), st.integers(1, 500))
def test_paired_interval_is_antisymmetric_and_wider_than_student(pairs, trials):
    first, second = zip(*pairs, strict=True)
    forth, back = (paired_interval(a, b, trials=trials, comparisons=3) for a, b in ((first, second), (second, first)))
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low), abs=1e-12)
    student = mean_interval([a - b for a, b in pairs], comparisons=3)
    assert forth.low <= max(-1, student.low) + 1e-12
    assert forth.high >= min(1, student.high) - 1e-12


@pytest.mark.parametrize(("rates", "spread"), [((0.6, 0.5), 0.08), ((0.999, 0.99), 0.0), ((0.7, 0.7), 0.02)])
def test_paired_interval_covers_the_true_difference(rates, spread):
    """Seeds vary and examples are few: the same hundred for every seed and both methods, some of them hard."""
    draw = random.Random(0)
    trials, examples, hits = 1500, 100, 0
    for _ in range(trials):
        hardness = sorted(draw.random() for _ in range(examples))
        skills = [[min(1.0, max(0.0, draw.gauss(rate, spread))) for _ in range(3)] for rate in rates]
        first, second = ([sum(h < skill for h in hardness) / examples for skill in each] for each in skills)
        interval = paired_interval(first, second, trials=examples)
        hits += interval.low <= rates[0] - rates[1] <= interval.high
    assert hits / trials >= 0.94


def test_a_rank_correlation_by_hand() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 100.0, 1000.0]) == pytest.approx(1)  # of ranks, not of values
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1)
    # Ranks 1.5, 1.5, 3 and 1, 2.5, 2.5, less 2 each: Σab = 0.5 − 0.25 + 0.5, Σa² = Σb² = 1.5.
    assert rank_correlation([0.0, 0.0, 5.0], [1.0, 7.0, 7.0]) == pytest.approx(0.5)


def test_a_constant_has_no_rank_correlation() -> None:
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0, 2.0], [3.0, 3.0]) is None
    assert rank_correlation([], []) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_correlation_is_that_of_counted_ranks(seed: int) -> None:
    draws = random.Random(seed)
    pairs = [(draws.randint(0, 9), draws.randint(0, 9) / 7) for _ in range(30)]
    first, second = zip(*pairs, strict=True)
    assert rank_correlation(first, second) == pytest.approx(spearman(first, second), abs=1e-12)
