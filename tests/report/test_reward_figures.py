"""The picture of a reward model: what is drawn are the report's numbers."""

import io
import random
import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from whet.evaluate.reward_reports import outcome_report, pair_report, process_report
from whet.report.run.reward_figures import _calibration as draw_calibration
from whet.report.run.reward_figures import _margins as draw_margins
from whet.report.run.reward_figures import reward_figures

BLUE, ORANGE = (0x2F, 0x6D, 0xB5), (0xD9, 0x77, 0x2B)


def pairs(count, **options):
    draws = random.Random(0)
    margins = [draws.gauss(0.7, 1.3) for _ in range(count)]
    lengths = [(draws.randint(1, 90), draws.randint(1, 90)) for _ in margins]
    return pair_report(margins, [0.0] * count, lengths=lengths, **options)


def pixels(report, title="Reward model"):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = reward_figures(report, title=title, subtitle="held-out")
    return np.asarray(Image.open(io.BytesIO(drawn)).convert("RGB")).astype(int)


def ink(part, colour, tolerance=40):
    return int((np.abs(part - colour).max(axis=2) < tolerance).sum())


@pytest.mark.parametrize("count", [1, 2, 30, 3000])
def test_every_panel_of_pairs_is_drawn(count):
    drawn = pixels(pairs(count, stated=[index % 7 / 2 for index in range(count)]))
    width = drawn.shape[1]
    assert width == int((4 * 3.9 + 0.3) * 150)
    for index in range(4):
        assert ink(drawn[:, index * width // 4 : (index + 1) * width // 4], BLUE) > 50, index


def test_panels_without_numbers_are_left_out():
    assert pixels(pairs(50)).shape[1] == int((3 * 3.9 + 0.3) * 150)
    assert pixels(pair_report([1.0, 2.0], [0.0, 3.0])).shape[1] == int((2 * 3.9 + 0.3) * 150)


def test_models_that_are_all_right_all_wrong_or_all_tied_have_a_picture():
    assert ink(pixels(pair_report([1.0] * 9, [0.0] * 9)), ORANGE) < 200  # the legend's square only
    assert ink(pixels(pair_report([0.0] * 9, [1.0] * 9)), ORANGE) > 2000
    assert pixels(pair_report([0.0] * 9, [0.0] * 9)).min() < 60


def test_the_histogram_holds_every_decision_on_its_side():
    report = pairs(500)
    axes = Figure().add_subplot()
    draw_margins(axes, report.margins)
    heights = {True: 0, False: 0}
    for bar in axes.patches:
        middle = bar.get_x() + bar.get_width() / 2
        heights[middle > 0] += round(bar.get_height())
    assert heights[True] == sum(margin > 0 for margin in report.margins)
    assert heights[False] == sum(margin < 0 for margin in report.margins)


def test_the_points_are_the_bins():
    report = pairs(500)
    axes = Figure().add_subplot()
    draw_calibration(axes, report.bins, report.calibration_error, (0.5, "confidence"))
    expected = [(some.predicted, some.observed.mean) for some in report.bins]
    np.testing.assert_allclose(axes.collections[0].get_offsets(), expected)


def test_outcomes_and_steps_have_a_picture_too():
    outcomes = outcome_report([[0.9, 0.2], [0.4, 0.6], [0.7]], [[True, False], [True, False], [True]])
    steps = process_report([[0.9, 0.2], [0.4, 0.6], [0.7]], [[1, -1], [1, 1], [0]])
    for report in (outcomes, steps, process_report([[0.9]], [[1]]), outcome_report([[0.9]], [[True]])):
        assert ink(pixels(report), BLUE) > 300


def test_names_are_text_and_the_same_report_gives_the_same_bytes():
    report = pairs(40)
    pixels(report, title="cost $x_{ 勾配\x00")
    first, second = (reward_figures(report, title="a", subtitle="b") for _ in range(2))
    assert first == second
