"""The best-of-n estimator against brute force, and its KL against distributions that can be written down."""

import math
from itertools import combinations, product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.evaluate.statistics import best_of_n, best_of_n_kl


def by_enumeration(proxy, values, n):
    """Every subset of n samples; the best by the proxy, ties shared."""
    chosen = []
    for subset in combinations(range(len(proxy)), n):
        top = max(proxy[i] for i in subset)
        tied = [values[i] for i in subset if proxy[i] == top]
        chosen.append(fmean(tied))
    return fmean(chosen)


def test_by_hand():
    proxy, gold = [1.0, 3.0, 2.0], [10.0, 0.0, 4.0]
    assert best_of_n(proxy, gold, 1) == pytest.approx(14 / 3)
    assert best_of_n(proxy, gold, 2) == pytest.approx((0 + 4 + 0) / 3)  # {1,3}: 0, {1,2}: 4, {3,2}: 0
    assert best_of_n(proxy, gold, 3) == 0.0
    assert best_of_n([5.0, 5.0], [1.0, 3.0], 2) == 2.0  # a tie is drawn by lot


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=7), st.data())
def test_equals_brute_force_with_ties(samples, data):
    n = data.draw(st.integers(1, len(samples)))
    proxy, values = [float(p) for p, _ in samples], [float(v) for _, v in samples]
    assert best_of_n(proxy, values, n) == pytest.approx(by_enumeration(proxy, values, n), abs=1e-9)


def test_unbiased_for_fresh_samples():
    """Its mean over all ways to draw four samples is the value of best-of-two with two fresh ones."""
    kinds = [(0.0, 1.0, 0.5), (1.0, -2.0, 0.3), (2.0, 5.0, 0.2)]  # proxy, gold, probability
    estimate = truth = 0.0
    for drawn in product(kinds, repeat=4):
        weight = math.prod(p for _, _, p in drawn)
        estimate += weight * best_of_n([x for x, _, _ in drawn], [g for _, g, _ in drawn], 2)
    for first, second in product(kinds, repeat=2):
        best = max(first, second)  # by the proxy, which comes first; equal ones are the same kind
        truth += first[2] * second[2] * best[1]
    assert estimate == pytest.approx(truth)


def test_kl_by_hand():
    assert best_of_n_kl(1) == 0.0
    assert best_of_n_kl(2) == pytest.approx(math.log(2) - 0.5)
    assert best_of_n_kl(16) == pytest.approx(math.log(16) - 15 / 16)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_kl_is_reached_by_many_different_outcomes_and_bounds_few(n):
    def kl(outcomes):
        """Of best-of-n over so many equally likely outcomes, the k-th best kept with (k/m)ⁿ − ((k−1)/m)ⁿ."""
        kept = [(k / outcomes) ** n - ((k - 1) / outcomes) ** n for k in range(1, outcomes + 1)]
        return sum(p * math.log(p * outcomes) for p in kept if p)

    assert kl(3) < kl(10) < best_of_n_kl(n)
    assert kl(20_000) == pytest.approx(best_of_n_kl(n), abs=1e-3)


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="1 <= n <= N"):
        best_of_n([1.0], [1.0], 2)
    with pytest.raises(ValueError, match="N values"):
        best_of_n([1.0, 2.0], [1.0], 1)
    with pytest.raises(ValueError, match="n >= 1"):
        best_of_n_kl(0)
