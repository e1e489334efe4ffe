"""Curves: nothing invented, nothing lost."""

import math
import random

import pytest

from whet.runs.series import Series, series, smooth, smoothing_window, thin


def test_series_leaves_out_what_was_not_recorded_or_not_finite():
    rows = [{"step": 1, "a": 2.0}, {"step": 2}, {"step": 3, "a": None}, {"step": 4, "a": math.inf}, {"step": 5, "a": 0}]
    assert series(rows, "a") == Series((1, 5), (2.0, 0.0))


def test_smooth_by_hand():
    assert smooth([0, 3, 6, 0], 3) == pytest.approx([1.5, 3, 3, 3])  # (0+3)/2, (0+3+6)/3, (3+6+0)/3, (6+0)/2
    assert smooth([4, 5], 1) == (4, 5)


def test_smooth_has_no_lag_on_a_line():
    line = [2.0 * i for i in range(50)]
    assert smooth(line, 7)[3:-3] == pytest.approx(line[3:-3])


@pytest.mark.parametrize(("count", "window"), [(1, 1), (19, 1), (20, 3), (300, 23), (10_000, 669)])
def test_window_grows_with_the_run(count, window):
    assert smoothing_window(count) == window


def test_thin_keeps_the_ends_and_every_spike():
    draw = random.Random(0)
    values = [draw.random() for _ in range(10_000)]
    values[4321], values[7777] = 50.0, -50.0
    curve = Series(tuple(range(10_000)), tuple(values))
    kept = thin(curve, 100)
    assert len(kept) <= 202
    assert (kept.steps[0], kept.steps[-1]) == (0, 9999)
    assert {4321, 7777} <= set(kept.steps)
    assert all(values[step] == value for step, value in zip(kept.steps, kept.values, strict=True))
    assert list(kept.steps) == sorted(set(kept.steps))


def test_thin_leaves_a_short_curve_alone():
    curve = Series((1, 2, 3), (3.0, 1.0, 2.0))
    assert thin(curve, 2) is curve
