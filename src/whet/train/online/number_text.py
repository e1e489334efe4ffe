"""Many rounded numbers as JSON, several times as fast as one by one.

A number is looked up in two tables, of its whole part and of its decimals, so all have the same width and the text of
any stretch is a slice of the whole, less the spaces.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import floor, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.runs.logs import Rendered

LARGEST = 10_000  # whole parts from here on are written with an exponent
SMALLEST = 0.1  # so are numbers that are all below


def number_text(values: NDArray[np.floating[Any]], ends: Sequence[int], decimals: int) -> list[Rendered]:
    """The stretches of (n,) values up to each of the ends as JSON arrays; what is not finite is null.

    Decimals count from the point or, where the largest number is very large or small, after its first digit.
    """
    known = np.isfinite(values)
    sizes = np.abs(np.where(known, values, 0.0), dtype=np.float64)
    largest = float(sizes.max(initial=0.0))
    exponent = 0 if largest == 0 or SMALLEST <= largest < LARGEST - 1 else floor(log10(largest))
    digits = np.rint(sizes * 10.0 ** (decimals - exponent)).astype(np.int64)
    whole, fraction = np.divmod(digits, 10**decimals)
    whole[(values < 0) & (digits > 0)] += LARGEST
    whole[~known], fraction[~known] = 2 * LARGEST, 10**decimals
    after = f"e{exponent}," if exponent else ","
    text = np.empty(len(values), dtype=[("whole", "S5"), ("decimals", f"S{decimals + 1}"), ("after", f"S{len(after)}")])
    text["whole"], text["decimals"], text["after"] = _whole_parts()[whole], _decimals(decimals)[fraction], after
    if exponent:
        text["after"][~known] = ",".rjust(len(after))
    data, width = text.tobytes(), text.dtype.itemsize
    cuts = pairwise([0, *(end * width for end in ends)])
    return [Rendered(b"[%s]" % data[start : max(start, stop - 1)].translate(None, b" ")) for start, stop in cuts]


@cache
def _whole_parts() -> NDArray[np.bytes_]:
    """Of positive numbers, then of negative ones, then null; right-aligned."""
    signs = [f"{sign}{number}".rjust(5) for sign in ("", "-") for number in range(LARGEST)]
    return np.array([*signs, " null"], dtype="S5")


@cache
def _decimals(count: int) -> NDArray[np.bytes_]:
    """With the point; the last is that of null."""
    return np.array(
        [*(f".{number:0{count}d}" for number in range(10**count)), " " * (count + 1)], dtype=f"S{count + 1}"
    )
