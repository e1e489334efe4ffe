"""Curves as rules read them: prefixes, start and end, and whether a curve has moved."""

import math
import random

import pytest

from tests.doctor.made import constant, curve, evals, history, ramp
from whet.doctor.history import last_steps, moved, now, share_above, start
from whet.runs.series import Series


def series_of(values):
    return Series(tuple(range(1, len(values) + 1)), tuple(map(float, values)))


def test_start_and_now_never_overlap():
    assert (start(series_of(range(1, 101))), now(series_of(range(1, 101)))) == (3.0, 90.5)  # 1…5 and 81…100
    assert now(series_of([1, 2, 3, 4])) == 3.5  # at most half of the steps
    assert last_steps(series_of([1])) == "the last step"
    assert last_steps(series_of(range(100))) == "the last 20 steps"


def test_a_curve_has_moved_by_standard_errors_of_its_noise():
    """Noise of deviation 1 around 0, then around 2: quarters of 25 differ by 2/√(2/25) ≈ 7.1 standard errors."""
    stream = random.Random(0)
    noise = [stream.gauss(0, 1) for _ in range(100)]
    assert abs(moved(series_of(noise))) < 3
    stepped = [value + 2 * (place >= 50) for place, value in enumerate(noise)]
    assert 5 < moved(series_of(stepped)) < 9
    assert moved(series_of([-value for value in stepped])) == pytest.approx(-moved(series_of(stepped)))


def test_standard_errors_are_those_of_a_difference_of_two_means():
    """Seven neighbours 1 apart: noise √(7 / 14); quarters of 2 differ by 2, whose error is noise · √(1/2 + 1/2)."""
    assert moved(series_of([0, 1, 0, 1, 2, 3, 2, 3])) == pytest.approx(2 / math.sqrt(0.5))


def test_what_cannot_be_told_has_not_moved():
    assert moved(series_of([1, 2, 3])) == 0  # too short
    assert moved(series_of([5] * 40)) == 0
    assert moved(series_of([0] * 20 + [1] * 20)) > 5


def test_a_prefix_knows_nothing_of_what_came_later():
    whole = history(ramp("entropy", 1.0, 0.1), constant("late", 1.0)[30:], evals(0.1, 0.9))
    early = whole.until(8)
    assert early.done == 8
    assert len(early.series("entropy")) == 8
    assert len(early.series("late")) == 0
    assert early.has_gained is None
    assert whole.has_gained is True
    assert [row["step"] for row in early.rows] == list(range(9))
    again = history(whole.rows[:9])
    assert early.series("entropy") == again.series("entropy")
    assert early.names == again.names


def test_nulls_are_no_values():
    seen = history(curve("loss", [1.0, None, math.nan, 2.0]))
    assert seen.series("loss") == Series((1, 4), (1.0, 2.0))
    assert seen.series("absent") == Series((), ())


@pytest.mark.parametrize(
    ("means", "gained", "lost"),
    [((0.3, 0.5), True, False), ((0.5, 0.3), False, True), ((0.3, 0.35), False, False), ((0.3,), None, None)],
)
def test_gain_and_loss_are_told_by_intervals(means, gained, lost):
    seen = history(evals(*means))
    assert (seen.has_gained, seen.has_lost) == (gained, lost)


def test_the_share_of_recent_steps_above_a_limit():
    assert share_above(series_of([9] * 20 + [1, 3] * 10), 2) == 0.5
