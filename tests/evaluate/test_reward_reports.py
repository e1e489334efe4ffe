"""Figures of reward models against numbers computed by hand or by counting."""

import math
from dataclasses import astuple, fields
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.evaluate.calibration import (
    area_under_curve,
    calibration,
    calibration_error,
    clustered,
    mean_by_cluster,
    quartiles,
    share_by_cluster,
    share_of_sums,
)
from whet.evaluate.reward_reports import (
    harmonic_mean,
    outcome_report,
    pair_report,
    process_report,
    report_metrics,
)
from whet.evaluate.statistics import Interval, mean_interval, wilson


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
    report = pair_report([0.0, 0.0, 5.0, 0.0], [1.0, 3.0, 0.0, 2.0], lengths=[(1, 1)] * 4)
    assert report.worst == (1, 3, 0)
    many = pair_report([0.0] * 12, [float(index + 1) for index in range(12)])
    assert many.worst == (11, 10, 9, 8, 7, 6, 5, 4, 3, 2)


def test_swapping_both_sides_turns_accuracy_round():
    chosen, rejected = [0.3, 2.0, -1.0, 0.5, 0.5], [0.1, 2.5, -1.5, 0.5, 0.7]
    lengths = [(1, 2), (3, 1), (4, 4), (2, 6), (5, 1)]
    forward = pair_report(chosen, rejected, lengths=lengths)
    backward = pair_report(rejected, chosen, lengths=[(b, a) for a, b in lengths])
    assert forward.accuracy.mean + backward.accuracy.mean == pytest.approx(1)
    assert forward.longer.mean + backward.longer.mean == pytest.approx(1)


def test_calibration_bins_by_hand():
    bins = calibration([0.0, 0.1, 0.5, 0.9, 1.0], [0, 1, 0, 1, 1], [0.0, 0.5, 1.0], range(5))
    assert [(some.low, some.high, some.count) for some in bins] == [(0.0, 0.5, 2), (0.5, 1.0, 3)]
    assert [some.predicted for some in bins] == pytest.approx([0.05, 0.8])
    assert [some.observed.mean for some in bins] == pytest.approx([0.5, 2 / 3])
    assert calibration_error(bins) == pytest.approx(2 / 5 * 0.45 + 3 / 5 * (0.8 - 2 / 3))
    with pytest.raises(ValueError, match="outside the bins"):
        calibration([1.2], [1], [0.0, 1.0], range(1))


def test_quartiles_keep_equal_values_together():
    parts = quartiles([3, 1, 1, 1, 1, 1, 2, 4], [1, 0, 1, 0, 1, 0, 1, 1], range(8))
    assert [(part.low, part.high, part.count) for part in parts] == [(1, 2, 6), (3, 4, 2)]
    assert [part.accuracy.mean for part in parts] == pytest.approx([3 / 6, 1.0])
    quarters = quartiles([8, 1, 2, 3, 4, 5, 6, 7], [1, 0, 0, 0, 1, 1, 1, 1], range(8))
    assert [(part.low, part.high) for part in quarters] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert [part.accuracy.mean for part in quarters] == [0.0, 0.5, 1.0, 1.0]
    assert quartiles([], [], []) == ()


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=60))
def test_quartiles_share_out_every_example_once_in_order(rows):
    values, outcomes = [float(value) for value, _ in rows], [mark for _, mark in rows]
    parts = quartiles(values, outcomes, range(len(rows)))
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
    copied = share_by_cluster(
        [number for number in range(80) for _ in range(10)], [x for x in outcomes for _ in range(10)]
    )
    assert copied.mean == pytest.approx(0.7)
    alone = wilson(sum(outcomes), len(outcomes))
    assert copied.high - copied.low == pytest.approx(alone.high - alone.low, rel=0.02)
    apart = share_by_cluster(range(800), outcomes * 10)
    assert apart == wilson(10 * sum(outcomes), 10 * len(outcomes))
    perfect = share_by_cluster([number % 5 for number in range(50)], [1.0] * 50)
    assert (perfect.mean, perfect.low) == (1.0, wilson(5, 5).low)
    assert share_of_sums([(1.0, 2), (0.0, 0)]).mean == 0.5
    with pytest.raises(ValueError, match="at least one value"):
        share_of_sums([(0.0, 0)])


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=6), min_size=1, max_size=12).filter(any))
def test_sums_and_counts_are_all_that_a_clustered_share_needs(clusters):
    found = share_of_sums([(sum(cluster), len(cluster)) for cluster in clusters])
    every = [value for cluster in clusters for value in cluster]
    assert found.mean == pytest.approx(sum(every) / len(every))
    assert found.low <= found.mean <= found.high
    keys = [number for number, cluster in enumerate(clusters) for _ in cluster]
    assert found == share_by_cluster(keys, every)
    assert share_by_cluster(range(len(every)), every) == wilson(sum(every), len(every))  # independent values
    assert list(clustered(keys, every).values()) == [cluster for cluster in clusters if cluster]


def test_values_of_a_key_need_not_stand_together():
    assert clustered(["a", "b", "a"], [1.0, 0.0, 0.5]) == {"a": [1.0, 0.5], "b": [0.0]}


def width(interval):
    return interval.high - interval.low


def intervals(report):
    """All intervals of a report, by name."""
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    found = {name: value for name, value in values.items() if isinstance(value, Interval)}
    for name in values.keys() & {"bins", "by_length", "by_margin"}:
        for number, part in enumerate(values[name]):
            found[f"{name} {number}"] = part.observed if name == "bins" else part.accuracy
    return found


def copies(values, times=5):
    return [value for value in values for _ in range(times)]


NUMBERS = range(40)
PAIRS = {
    "chosen": [0.8 if number % 4 else 0.3 for number in NUMBERS],
    "rejected": [0.5 + number / 400 for number in NUMBERS],
    "lengths": [(1 + number % 3, 2) for number in NUMBERS],
    "stated": [None if number % 5 == 0 else float(number % 7) for number in NUMBERS],
}
OUTCOMES = {
    "probabilities": [[0.1 + (number % 7) / 8, 0.9 - (number % 5) / 6] for number in NUMBERS],
    "correct": [[number % 3 > 0, number % 4 == 0] for number in NUMBERS],
}
TRACES = {
    "probabilities": [[0.9, 0.1 + (number % 7) / 8, 0.9 - (number % 5) / 6] for number in NUMBERS],
    "labels": [[1, number % 3 - 1, 1 if number % 2 else -1] for number in NUMBERS],
}


@pytest.mark.parametrize(
    ("report", "rows"), [(pair_report, PAIRS), (outcome_report, OUTCOMES), (process_report, TRACES)]
)
def test_rows_of_the_same_cluster_are_not_independent(report, rows):
    """Five copies of each row: as much is known as from one of each, and every interval says so."""
    once = report(**rows)
    copied = {name: copies(column) for name, column in rows.items()}
    clusters = copies([f"k{number}" for number in NUMBERS])
    together, apart = intervals(report(**copied, clusters=clusters)), intervals(report(**copied))
    known = intervals(once)
    assert known.keys() == together.keys() == apart.keys()
    assert len(known) >= 9
    for name, interval in known.items():
        assert together[name].mean == pytest.approx(apart[name].mean) == pytest.approx(interval.mean), name
        assert width(together[name]) == pytest.approx(width(interval), rel=0.25), name
        assert width(apart[name]) < 0.8 * width(together[name]), name
    assert report(**rows, clusters=list(NUMBERS)) == once


def test_the_mean_margin_of_unequal_clusters_by_hand():
    """Sums 3, 1 and 8 of 2, 1 and 3 values around a mean of 2: residuals −1, −1 and 2, and t of two degrees."""
    report = pair_report([1.0, 2.0, 1.0, 2.0, 2.0, 4.0], [0.0] * 6, clusters=["a", "a", "b", "c", "c", "c"])
    half = 4.302652729911275 * math.sqrt((1 + 1 + 4) / 36 * 3 / 2)
    assert astuple(report.mean_margin) == pytest.approx((2.0, 2.0 - half, 2.0 + half))


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=30))
def test_a_mean_of_values_that_are_not_alike_has_students_interval(values):
    found, expected = mean_by_cluster(range(len(values)), values), mean_interval(values)
    assert astuple(found) == pytest.approx(astuple(expected), abs=1e-9)


def test_values_of_one_cluster_say_nothing_about_their_spread():
    assert mean_by_cluster(["a", "a"], [1.0, 3.0]) == Interval(2.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="at least one value"):
        mean_by_cluster([], [])


def test_stated_margins_are_those_of_all_pairs():
    with pytest.raises(ValueError, match="must be those of all pairs"):
        pair_report([1.0, 2.0], [0.0, 0.0], stated=[1.0])


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


def test_a_step_below_one_half_is_called_bad():
    assert process_report([[0.5, 0.6]], [[1, 1]]).no_error.mean == 1.0
    assert process_report([[0.4, 0.6]], [[1, 1]]).no_error.mean == 0.0


def test_functions_at_extremes():
    assert pair_report([-1000.0], [0.0]).loss == 1000
    assert pair_report([1000.0], [0.0]).loss == 0
    assert pair_report([0.0], [0.0]).loss == pytest.approx(math.log(2))
    assert harmonic_mean(0, 0) == 0


def test_metrics_are_the_reports_numbers():
    pairs = report_metrics(pair_report([2.0, 0.0, 1.0, 4.0], [0.0, 1.0, 1.0, 1.0]))
    assert pairs["eval/pair_accuracy"] == 0.625
    assert pairs["eval/pair_accuracy_low"] == wilson(2.5, 4).low
    assert (pairs["eval/margin"], pairs["eval/ties"]) == (1.0, 0.25)
    outcomes = report_metrics(outcome_report([[0.9, 0.1], [0.7]], [[True, False], [True]]))
    assert (outcomes["eval/top"], outcomes["eval/pairwise"], outcomes["eval/outcome_accuracy"]) == (1.0, 1.0, 1.0)
    steps = report_metrics(process_report([[0.9, 0.1], [0.8]], [[1, -1], [0]]))
    assert (steps["eval/step_accuracy"], steps["eval/first_error_f1"]) == (1.0, 1.0)
    assert "eval/area" in steps
    assert "eval/pairwise" not in report_metrics(outcome_report([[0.7]], [[True]]))


def test_nothing_to_report_on_is_an_error():
    for empty in (lambda: pair_report([], []), lambda: outcome_report([], []), lambda: process_report([[]], [[]])):
        with pytest.raises(ValueError, match="at least one"):
            empty()
    with pytest.raises(ValueError, match="must be those of all pairs"):
        pair_report([1.0, 2.0], [0.0, 0.0], lengths=[(1, 1)])
