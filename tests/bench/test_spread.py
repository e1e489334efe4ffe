"""The statistics of repeats, by hand."""

import pytest

from bench.spread import Spread, paired_ratio, spread, timed_median


def test_spread_of_three():
    assert spread([3.0, 1.0, 8.0]) == Spread(median=3.0, low=1.0, high=8.0)


def test_pairs_cancel_what_slows_both():
    """The machine is slow in the second round: the medians would say 8/2, the pairs say 2, 3 and 4."""
    assert paired_ratio([4.0, 30.0, 8.0], [2.0, 10.0, 2.0]) == Spread(median=3.0, low=2.0, high=4.0)


def test_a_pair_needs_both():
    with pytest.raises(ValueError, match="2 repeats against 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_the_first_step_is_not_timed():
    assert timed_median([100.0, 2.0, 4.0, 3.0]) == 3.0
    with pytest.raises(ValueError, match="at least two steps"):
        timed_median([1.0])
