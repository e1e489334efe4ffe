"""Curves of logged metrics: extraction, smoothing without lag, thinning that keeps spikes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Rows = Sequence[Mapping[str, Any]]  # as logged: {"step": n, name: value or None}


@dataclass(frozen=True, slots=True)
class Series:
    """The logged values of one metric; steps and values have the same length."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)


def series(rows: Rows, name: str) -> Series:
    """The finite values of a metric, in order of steps; missing and null values are dropped."""
    points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name) is not None]
    points = [(step, value) for step, value in points if math.isfinite(value)]
    return Series(tuple(step for step, _ in points), tuple(value for _, value in points))


def columns(rows: Rows) -> dict[str, Series]:
    """Every metric as `series` gives it, read in one pass: a hostile log could have as many names as rows."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and value is not None and math.isfinite(value):
                points.setdefault(name, []).append((int(row["step"]), float(value)))
    return {name: Series(*zip(*found, strict=True)) for name, found in points.items()}


def smooth(values: Sequence[float], window: int) -> tuple[float, ...]:
    """Centred moving average (no lag), truncated at the ends."""
    if window == 1:
        return tuple(values)  # exact, without rounding of sums
    sums, half = [0.0, *accumulate(values)], window // 2
    spans = [(max(0, i - half), min(len(values), i + half + 1)) for i in range(len(values))]
    return tuple((sums[stop] - sums[start]) / (stop - start) for start, stop in spans)


def smoothing_window(count: int) -> int:
    """Window of the moving average: 1 for short runs, about a fifteenth of long ones, always odd."""
    return 1 if count < 20 else 2 * (count // 30) + 3


def thin(curve: Series, buckets: int) -> Series:
    """At most two points per bucket, its minimum and maximum, so that single spikes stay visible."""
    count = len(curve)
    if count <= 2 * buckets:
        return curve
    kept = {0, count - 1}
    for bucket in range(buckets):
        indices = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept |= {min(indices, key=curve.values.__getitem__), max(indices, key=curve.values.__getitem__)}
    order = sorted(kept)
    return Series(tuple(curve.steps[i] for i in order), tuple(curve.values[i] for i in order))
