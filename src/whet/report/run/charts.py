"""Panels as inline SVG. Coordinates are computed here; templates/chart.html draws them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whet.number_format import number
from whet.report.figures import MARKED
from whet.report.run.training_curves import Line, Panel
from whet.runs.series import Series, thin

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 22  # margins for labels
BUCKETS = 150  # of a curve: about two points per pixel


def chart(panel: Panel) -> dict[str, Any]:
    """The values of templates/chart.html."""
    scale = Scale.of(panel)
    lines = [_line(line, scale) for line in panel.lines]
    steps = [step for step in ticks(scale.first, scale.last, 5) if step == int(step)]
    return {
        "title": panel.title,
        "unit": panel.unit,
        "about": f"{panel.title}, {panel.unit}: latest {', '.join(line['latest'] for line in lines)}",
        "levels": [(scale.y(level), number(level)) for level in scale.levels()],  # y and label of each grid line
        "ticks": [(scale.x(step), f"{int(step):,}") for step in steps],
        "lines": lines,
        "data": _data(panel, scale),
        **{
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": WIDTH - RIGHT,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
        },
    }


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) in [low, high], at most `count` strides apart."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / stride - 1e-9), math.floor(high / stride + 1e-9)
    return [stride * i for i in range(first, last + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps steps and values to pixels."""

    first: float
    last: float
    low: float  # of the axis; log10 if `log`
    high: float
    log: bool = False

    @classmethod
    def of(cls, panel: Panel) -> Scale:
        """A scale that fits all lines of a panel."""
        steps = [step for line in panel.lines for step in line.curve.steps]
        values = [value for line in panel.lines for value in _extent(line)]
        ends = (math.log10(min(values)), math.log10(max(values))) if panel.log else (min(values), max(values))
        room = 0.06 * (ends[1] - ends[0]) or abs(ends[1]) * 0.1 or 1.0
        first = 0 if min(steps) <= max(1, max(steps) / 20) else min(steps)  # the axis of a run from step 1 starts at 0
        return cls(
            first=first,
            last=max(first + 1, *steps),  # a single step still has a width
            low=ends[0] - room if panel.floor is None else panel.floor,
            high=ends[1] + room if panel.ceiling is None else panel.ceiling,
            log=panel.log,
        )

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        share = ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def points(self, steps: Sequence[float], values: Sequence[float]) -> list[tuple[str, str]]:
        """SVG coordinates."""
        return [(f"{self.x(step):.1f}", f"{self.y(value):.1f}") for step, value in zip(steps, values, strict=True)]

    def levels(self) -> list[float]:
        """Values with a grid line."""
        if not self.log:
            return ticks(self.low, self.high)
        powers = range(math.ceil(self.low), math.floor(self.high) + 1)
        stride = max(1, math.ceil(len(powers) / 4))
        return [10.0**power for power in powers[::stride]]


def _extent(line: Line) -> list[float]:
    shown = [*line.curve.values, *(line.low or ()), *(line.high or ())]
    return shown + list(line.faint.values if line.faint else ())


def _line(line: Line, scale: Scale) -> dict[str, Any]:
    """A line with its points; those of the band and the raw values are empty where there are none."""
    around: list[tuple[str, str]] = []
    if line.low is not None and line.high is not None:
        steps = line.curve.steps
        around = [*scale.points(steps, line.high), *reversed(scale.points(steps, line.low))]
    raw = thin(line.faint, BUCKETS) if line.faint else Series((), ())
    curve = thin(line.curve, BUCKETS)
    places = scale.points(curve.steps, curve.values)
    return {
        "colour": line.colour,
        "label": line.label,
        "latest": number(line.curve.values[-1]),
        "curve": _joined(places),
        "band": _joined(around),
        "faint": _joined(scale.points(raw.steps, raw.values)),
        "dots": places if len(line.curve) <= MARKED else (),
    }


def _joined(points: Sequence[tuple[str, str]]) -> str:
    """The `points` attribute of an SVG line."""
    return " ".join(f"{x},{y}" for x, y in points)


def _data(panel: Panel, scale: Scale) -> str:
    """JSON for the tooltip: steps and formatted values of each line."""
    curves = []
    for line in panel.lines:
        curve = thin(line.curve, BUCKETS)
        curves.append({"steps": curve.steps, "shown": [number(value) for value in curve.values]})
    frame = {"first": scale.first, "last": scale.last, "left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH}
    return json.dumps({**frame, "width": WIDTH, "curves": curves}, separators=(",", ":"), ensure_ascii=False)
