"""Intervals and pass@k against enumeration, integration, simulation and numbers worked by hand."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.evaluate.statistics import Interval, mean_interval, pass_at_k, t_quantile, wilson


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
