"""Figures of reward models against numbers computed by hand or by counting."""

import math
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.evaluate.calibration import (
    area_under_curve,
    calibration,
    calibration_error,
    clustered_share,
    quartiles,
    share,
)
from whet.evaluate.reward_reports import (
    harmonic_mean,
    outcome_report,
    pair_report,
    process_report,
    sigmoid,
    softplus,
)
from whet.evaluate.rewarding import report_metrics
from whet.evaluate.statistics import wilson


def test_pairs_by_hand():
    # Margins 2, −1, 0, 3: two right, one wrong, one tie.
    report = pair_report([2.0, 0.0, 1.0, 4.0], [0.0, 1.0, 1.0, 1.0], lengths=[(5, 3), (2, 9), (4, 4), (1, 2)])
    assert report.pairs == 4
    assert report.accuracy.mean == 2.5 / 4
    assert report.accuracy == wilson(2.5, 4)
    assert report.ties == 1
    assert report.margins == (2.0, -1.0, 0.0, 3.0)
    assert report.mean_margin.mean == 1.0
    expected = [0.126928011, 1.313261688, 0.693147181, 0.048587352]  # log(1 + e^−m)
    assert report.loss == pytest.approx(sum(expected) / 4, abs=1e-8)
    assert report.longer.mean == (1 + 0 + 0.5 + 0) / 4
    assert report.worst == (1,)
    assert report.by_margin == ()


def test_a_model_that_says_the_same_of_everything_is_half_right():
    report = pair_report([1.0] * 20, [1.0] * 20, lengths=[(1, 1)] * 20)
    assert (report.accuracy.mean, report.ties, report.worst) == (0.5, 20, ())
    assert report.calibration_error == 0  # it says ½, and is right half of the time
    assert report.loss == pytest.approx(math.log(2))


def test_confidence_is_that_of_the_decision():
    # σ(±0.4) is 0.5987: all four decisions are made with that confidence, and three of them are right.
    report = pair_report([0.4, 0.4, 0.4, 0.0], [0.0, 0.0, 0.0, 0.4], lengths=[(1, 1)] * 4)
    (only,) = report.bins
    assert only.low <= 0.5986876601 < only.high
    assert only.predicted == pytest.approx(0.5986876601)
    assert (only.observed.mean, only.count) == (0.75, 4)
    assert report.calibration_error == pytest.approx(0.75 - 0.5986876601)


def test_accuracy_by_stated_margin_leaves_out_pairs_without_one():
    report = pair_report(
        [1.0, -1.0, 1.0, 1.0, 1.0],
        [0.0] * 5,
        lengths=[(1, 1)] * 5,
        stated=[0.1, 0.2, None, 0.3, 0.4],
    )
    assert [(part.low, part.high, part.count, part.accuracy.mean) for part in report.by_margin] == [
        (0.1, 0.1, 1, 1.0),
        (0.2, 0.2, 1, 0.0),
        (0.3, 0.3, 1, 1.0),
        (0.4, 0.4, 1, 1.0),
    ]


def test_worst_pairs_come_worst_first_and_are_wrong():
    report = pair_report([0.0, 0.0, 5.0, 0.0], [1.0, 3.0, 0.0, 2.0], lengths=[(1, 1)] * 4, worst=2)
    assert report.worst == (1, 3)


def test_swapping_both_sides_turns_accuracy_round():
    chosen, rejected = [0.3, 2.0, -1.0, 0.5, 0.5], [0.1, 2.5, -1.5, 0.5, 0.7]
    lengths = [(1, 2), (3, 1), (4, 4), (2, 6), (5, 1)]
    forward = pair_report(chosen, rejected, lengths=lengths)
    backward = pair_report(rejected, chosen, lengths=[(b, a) for a, b in lengths])
    assert forward.accuracy.mean + backward.accuracy.mean == pytest.approx(1)
    assert forward.longer.mean + backward.longer.mean == pytest.approx(1)


def test_calibration_bins_by_hand():
    bins = calibration([0.0, 0.1, 0.5, 0.9, 1.0], [0, 1, 0, 1, 1], [0.0, 0.5, 1.0])
    assert [(some.low, some.high, some.count) for some in bins] == [(0.0, 0.5, 2), (0.5, 1.0, 3)]
    assert [some.predicted for some in bins] == pytest.approx([0.05, 0.8])
    assert [some.observed.mean for some in bins] == pytest.approx([0.5, 2 / 3])
    assert calibration_error(bins) == pytest.approx(2 / 5 * 0.45 + 3 / 5 * (0.8 - 2 / 3))
    with pytest.raises(ValueError, match="outside the bins"):
        calibration([1.2], [1], [0.0, 1.0])


def test_quartiles_keep_equal_values_together():
    parts = quartiles([3, 1, 1, 1, 1, 1, 2, 4], [1, 0, 1, 0, 1, 0, 1, 1])
    assert [(part.low, part.high, part.count) for part in parts] == [(1, 2, 6), (3, 4, 2)]
    assert [part.accuracy.mean for part in parts] == pytest.approx([3 / 6, 1.0])
    quarters = quartiles([8, 1, 2, 3, 4, 5, 6, 7], [1, 0, 0, 0, 1, 1, 1, 1])
    assert [(part.low, part.high) for part in quarters] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert [part.accuracy.mean for part in quarters] == [0.0, 0.5, 1.0, 1.0]
    assert quartiles([], []) == ()


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=60))
def test_quartiles_share_out_every_example_once_in_order(rows):
    values, outcomes = [float(value) for value, _ in rows], [mark for _, mark in rows]
    parts = quartiles(values, outcomes)
    assert sum(part.count for part in parts) == len(rows)
    assert len(parts) <= 4
    assert all(first.high < second.low for first, second in pairwise(parts))
    for part in parts:
        inside = [mark for value, mark in zip(values, outcomes, strict=True) if part.low <= value <= part.high]
        assert part.accuracy.mean == pytest.approx(sum(inside) / len(inside))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=15), st.lists(st.integers(0, 6), min_size=1, max_size=15))
def test_area_is_the_share_of_pairs_in_order(positives, negatives):
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in product(positives, negatives)]
    assert area_under_curve(positives, negatives) == pytest.approx(sum(wins) / len(wins))


def test_values_that_repeat_in_a_cluster_count_once():
    """Ten copies of each value say no more than one of each: with clusters of copies the interval is the clusters'."""
    outcomes = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0] * 8
    copied = clustered_share([[value] * 10 for value in outcomes])
    assert copied.mean == pytest.approx(0.7)
    alone = share(outcomes)
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low, rel=0.02)
    apart = clustered_share([[value] for value in outcomes * 10])
    assert apart.high - apart.low == pytest.approx(share(outcomes * 10).high - share(outcomes * 10).low, rel=0.02)
    perfect = clustered_share([[1.0] * 10] * 5)
    assert (perfect.mean, perfect.low) == (1.0, wilson(5, 5).low)
    assert clustered_share([[1.0, 0.0], []]).mean == 0.5
    with pytest.raises(ValueError, match="at least one value"):
        clustered_share([[]])


def test_outcomes_by_hand():
    probabilities = [[0.9, 0.2, 0.4], [0.7, 0.8], [0.3, 0.3], [0.1, 0.2]]
    correct = [[True, False, True], [True, False], [True, False], [False, False]]
    report = outcome_report(probabilities, correct)
    assert (report.problems, report.solutions) == (4, 9)
    # Right above ½: .9 yes, .2 no, .4 no (wrong call), .7 yes, .8 yes (wrong), .3 (wrong), .3 no, .1 no, .2 no.
    assert report.accuracy.mean == pytest.approx(6 / 9)
    assert report.top.mean == pytest.approx((1 + 0 + 0.5 + 0) / 4)  # the tie of the third is half right
    assert report.chance == pytest.approx((2 / 3 + 1 / 2 + 1 / 2 + 0) / 4)
    assert report.ceiling == 0.75
    assert report.pairwise.mean == pytest.approx((1 + 0 + 0.5) / 3)  # the last problem has no pair
    # Right: .9 .4 .7 .3; wrong: .2 .8 .3 .1 .2. Wins: 5 + 4 + 4 + 3.5 of 20.
    assert report.area == pytest.approx(16.5 / 20)
    assert report.worst == (1,)


def test_outcomes_without_any_wrong_solution_have_no_order():
    report = outcome_report([[0.9], [0.8]], [[True], [True]])
    assert (report.pairwise, report.area, report.top.mean) == (None, None, 1.0)


def test_steps_by_hand():
    probabilities = [[0.9, 0.4, 0.8], [0.9, 0.8], [0.6, 0.2], [0.7, 0.9]]
    labels = [[1, -1, 1], [0, 1], [-1, -1], [1, 1]]
    report = process_report(probabilities, labels)
    assert (report.traces, report.steps) == (4, 9)
    assert report.accuracy.mean == pytest.approx(8 / 9)  # only the first step of the third trace is misjudged
    assert report.fine_recall == 1.0
    assert report.bad_recall == pytest.approx(2 / 3)
    assert report.first_error.mean == 0.5  # the first trace's is found, the third's is found one step late
    assert report.no_error.mean == 1.0
    assert report.f1 == pytest.approx(2 * 0.5 / 1.5)
    # Fine: .9 .8 .9 .8 .7 .9; bad: .4 .6 .2. All fine ones stand above all bad ones.
    assert report.area == 1.0
    assert report.worst == (2,)


def test_steps_after_the_first_error_do_not_count_for_finding_it():
    report = process_report([[0.9, 0.1, 0.9, 0.1]], [[1, -1, -1, -1]])
    assert report.first_error.mean == 1.0
    assert report.accuracy.mean == 0.75
    assert (report.no_error, report.f1) == (None, None)


def test_a_threshold_moves_what_is_called_bad():
    assert process_report([[0.4, 0.6]], [[1, 1]], threshold=0.3).no_error.mean == 1.0
    assert process_report([[0.4, 0.6]], [[1, 1]]).no_error.mean == 0.0


def test_functions_at_extremes():
    assert (sigmoid(-1000), sigmoid(1000), sigmoid(0)) == (0.0, 1.0, 0.5)
    assert softplus(1000) == 1000
    assert softplus(-1000) == 0
    assert harmonic_mean(0, 0) == 0


def test_metrics_are_the_reports_numbers():
    pairs = report_metrics(pair_report([2.0, 0.0, 1.0, 4.0], [0.0, 1.0, 1.0, 1.0]))
    assert pairs["eval/accuracy"] == 0.625
    assert pairs["eval/accuracy_low"] == wilson(2.5, 4).low
    assert (pairs["eval/margin"], pairs["eval/ties"]) == (1.0, 0.25)
    outcomes = report_metrics(outcome_report([[0.9, 0.1], [0.7]], [[True, False], [True]]))
    assert (outcomes["eval/top"], outcomes["eval/pairwise"], outcomes["eval/accuracy"]) == (1.0, 1.0, 1.0)
    steps = report_metrics(process_report([[0.9, 0.1], [0.8]], [[1, -1], [0]]))
    assert (steps["eval/accuracy"], steps["eval/first_error_f1"]) == (1.0, 1.0)
    assert "eval/area" in steps
    assert "eval/pairwise" not in report_metrics(outcome_report([[0.7]], [[True]]))


def test_nothing_to_report_on_is_an_error():
    for empty in (lambda: pair_report([], []), lambda: outcome_report([], []), lambda: process_report([[]], [[]])):
        with pytest.raises(ValueError, match="at least one"):
            empty()
    with pytest.raises(ValueError, match="lengths of 1 pairs"):
        pair_report([1.0, 2.0], [0.0, 0.0], lengths=[(1, 1)])
