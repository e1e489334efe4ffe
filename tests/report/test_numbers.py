"""How numbers are written."""

import pytest

from whet.number_format import duration, number, percent, signed


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *((0, "0"), (1, "1"), (0.5, "0.5"), (100.0, "100"), (-0.577, "−0.577"), (12.345, "12.3")),
        *((1843.2, "1,843"), (20_000, "20,000"), (0.00123, "0.00123"), (0.0001, "1e−4")),
        *((3.456e-6, "3.5e−6"), (-2e-7, "−2e−7"), (1.5e6, "1.5e6")),
    ],
)
def test_number(value, written):
    assert number(value) == written


def test_signed():
    assert (signed(1.5), signed(0), signed(-1.5)) == ("+1.5", "0", "−1.5")


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.345, "34 %"),
        (0.004, "0.4 %"),
        (0.998, "99.8 %"),
        (0.0001, "< 0.1 %"),
        (0.9999, "> 99.9 %"),
    ],
)
def test_percent_never_rounds_to_none_or_all(share, written):
    assert percent(share) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(6.2, "6.2 s"), (124, "2 min 4 s"), (3599.6, "1 h 0 min"), (7260, "2 h 1 min")]
)
def test_duration(seconds, written):
    assert duration(seconds) == written
