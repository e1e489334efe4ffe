"""Numbers rendered by tables are the JSON of the rounded numbers."""

import json
import math

import numpy as np
import pytest

from whet.train.online.number_text import number_text


def read(values: list[float], ends: list[int], decimals: int = 4) -> list[list[float | None]]:
    return [json.loads(text) for text in number_text(np.array(values, dtype=np.float64), ends, decimals)]


@pytest.mark.parametrize("decimals", [1, 4, 5])
@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1.0, 500.0, 1e15])
def test_they_are_rounded_to_so_many_digits(decimals: int, scale: float) -> None:
    """From the point on, or relative to the largest where that is very large or small."""
    values = np.random.default_rng(3).normal(0, scale, 200)
    (found,) = read(values.tolist(), [200], decimals)
    largest = max(abs(values))
    unit = 1.0 if 0.1 <= largest < 9999 else 10.0 ** math.floor(math.log10(largest))
    assert found == pytest.approx(values.tolist(), rel=1e-12, abs=0.5001 * unit * 10.0**-decimals)


def test_every_stretch_is_a_list() -> None:
    assert read([1.0, -2.5, 3.25, 0.125], [0, 2, 2, 3, 4, 4]) == [[], [1.0, -2.5], [], [3.25], [0.125], []]
    assert read([], [0, 0]) == [[], []]


def test_texts_are_short_and_the_same_as_json_writes_them() -> None:
    (text,) = number_text(np.array([0.0, -0.0, -1e-9, 9998.99999, -1234.5, 0.1]), [6], 4)
    assert text == b"[0.0000,0.0000,0.0000,9999.0000,-1234.5000,0.1000]"
    (small,) = number_text(np.array([0.0123, -0.00456, math.nan]), [3], 2)
    assert small == b"[1.23e-2,-0.46e-2,null]"


def test_what_is_not_finite_is_null_and_changes_no_other() -> None:
    assert read([math.nan, 1.5, math.inf, -math.inf], [1, 4]) == [[None], [1.5, None, None]]
    assert read([math.nan], [1]) == [[None]]
