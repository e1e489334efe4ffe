"""The drawing: round ticks, and every point where its value belongs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.report.formatting import render
from whet.report.run.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart, ticks
from whet.report.run.training_curves import Line, Panel
from whet.runs.series import Series


def drawn(panel):
    """The figure as it stands on the page."""
    return render("chart.html", chart=chart(panel))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (3, 14, [5, 7.5, 10, 12.5]),
    ],
)
def test_ticks_by_hand(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


@given(low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_ticks_are_inside_even_and_not_too_many(low, width):
    places = ticks(low, low + width)
    assert 2 <= len(places) <= 6
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert low - slack <= places[0] <= places[-1] <= low + width + slack


def test_points_stand_where_their_values_belong():
    line = Line(label="a", curve=Series((0, 50, 100), (0.0, 100.0, 50.0)), colour=0)
    drawing = drawn(Panel(title="t", unit="%", lines=(line,), floor=0, ceiling=100))
    points = re.search(r'class="curve" points="([^"]*)"', drawing).group(1)
    left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
    middle_x, middle_y = (left + right) / 2, (TOP + bottom) / 2
    expected = [(left, bottom), (middle_x, TOP), (right, middle_y)]
    found = [tuple(float(number) for number in pair.split(",")) for pair in points.split()]
    assert found == [pytest.approx(pair, abs=0.06) for pair in expected]


def test_a_logarithmic_panel_puts_equal_ratios_at_equal_distances():
    line = Line(label="a", curve=Series((1, 2, 3), (1e-6, 1e-5, 1e-4)), colour=0)
    drawing = drawn(Panel(title="t", unit="nats", lines=(line,), log=True))
    points = re.search(r'class="curve" points="([^"]*)"', drawing).group(1)
    first, second, third = (float(pair.split(",")[1]) for pair in points.split())
    assert first - second == pytest.approx(second - third, abs=0.11)
    assert "1e−5" in drawing


def test_one_point_and_a_constant_are_drawn_inside_the_frame():
    for values in ((0.0,), (7.0,), (0.0, 0.0)):
        line = Line(label="a", curve=Series(tuple(range(1, len(values) + 1)), values), colour=0)
        for floor in (None, 0):
            drawing = drawn(Panel(title="t", unit="", lines=(line,), floor=floor))
            for x, y in re.findall(r'cx="([^"]*)" cy="([^"]*)"', drawing):
                assert LEFT <= float(x) <= WIDTH - RIGHT
                assert TOP <= float(y) <= HEIGHT - BOTTOM
