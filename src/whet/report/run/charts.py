"""The panels as inline SVG: sharp at any size, in the page's own fonts and colours, light or dark."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.report.markup import Markup, element, join
from whet.report.numbers import number
from whet.report.run.panels import Line, Panel
from whet.report.series import Series, thin

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 22  # room for the labels
BUCKETS = 150  # of a curve: about two points per pixel
MARKED = 30  # a curve with at most this many points shows each of them


def chart(panel: Panel) -> Markup:
    """One panel as a figure: heading, latest value, legend, drawing."""
    scale = _Scale.of(panel)
    latest = [number(line.curve.values[-1]) for line in panel.lines]
    readings = [element("span", value, class_="reading", data_latest=value) for value in latest]
    alone = len(panel.lines) == 1
    heading = element(
        "figcaption",
        element("span", panel.title, class_="chart-title"),
        element("span", panel.unit, class_="chart-unit"),
        element("span", element("span", class_="at"), readings[0] if alone else "", class_="chart-value"),
    )
    legend = join() if alone else element("div", *map(_key, panel.lines, readings), class_="legend")
    drawing = element(
        "svg",
        *_axes(scale),
        *(_line(line, scale) for line in panel.lines),
        element("line", class_="cursor", y1=str(TOP), y2=str(HEIGHT - BOTTOM), x1="-9", x2="-9"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{panel.title}, {panel.unit}: latest {', '.join(latest)}",
    )
    return element("figure", heading, legend, drawing, class_="chart", data_curves=_data(panel, scale))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """The round numbers (1, 2, 2.5 or 5 times a power of ten) in [low, high], at most `count` strides apart."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / stride - 1e-9), math.floor(high / stride + 1e-9)
    return [stride * i for i in range(first, last + 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    """From steps and values to places in the drawing."""

    first: int
    last: int
    low: float  # of the axis; its logarithm where `log`
    high: float
    log: bool

    @classmethod
    def of(cls, panel: Panel) -> _Scale:
        """The scale on which all of a panel can be seen."""
        steps = [step for line in panel.lines for step in line.curve.steps]
        values = [value for line in panel.lines for value in _extent(line)]
        ends = (math.log10(min(values)), math.log10(max(values))) if panel.log else (min(values), max(values))
        room = 0.06 * (ends[1] - ends[0]) or abs(ends[1]) * 0.1 or 1.0
        first = 0 if min(steps) <= max(1, max(steps) / 20) else min(steps)  # a run from step 1 has an axis from 0
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

    def levels(self) -> list[float]:
        """The values that get a grid line."""
        if not self.log:
            return ticks(self.low, self.high)
        powers = range(math.ceil(self.low), math.floor(self.high) + 1)
        stride = max(1, math.ceil(len(powers) / 4))
        return [10.0**power for power in powers[::stride]]


def _extent(line: Line) -> list[float]:
    shown = [*line.curve.values, *(line.low or ()), *(line.high or ())]
    return shown + list(line.faint.values if line.faint else ())


def _axes(scale: _Scale) -> list[Markup]:
    parts = []
    for level in scale.levels():
        y = f"{scale.y(level):.1f}"
        parts.append(element("line", class_="grid", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=y, y2=y))
        parts.append(
            element("text", number(level), class_="tick", x=str(LEFT - 7), y=y, dy="0.32em", text_anchor="end")
        )
    for step in ticks(scale.first, scale.last, 5):
        if step == int(step):
            x = f"{scale.x(step):.1f}"
            parts.append(element("text", f"{int(step):,}", class_="tick", x=x, y=str(HEIGHT - 5), text_anchor="middle"))
    return parts


def _line(line: Line, scale: _Scale) -> Markup:
    parts = []
    if line.low is not None and line.high is not None:
        steps = line.curve.steps
        around = [*zip(steps, line.high, strict=True), *reversed(list(zip(steps, line.low, strict=True)))]
        parts.append(element("polygon", class_="band", points=_points(around, scale)))
    if line.faint is not None:
        parts.append(element("polyline", class_="faint", points=_points(_pairs(thin(line.faint, BUCKETS)), scale)))
    curve = thin(line.curve, BUCKETS)
    parts.append(element("polyline", class_="curve", points=_points(_pairs(curve), scale)))
    if len(line.curve) <= MARKED:
        places = [(f"{scale.x(step):.1f}", f"{scale.y(value):.1f}") for step, value in _pairs(curve)]
        parts.extend(element("circle", class_="dot", cx=x, cy=y, r="2.4") for x, y in places)
    return element("g", *parts, class_=f"colour{line.colour}")


def _pairs(curve: Series) -> list[tuple[int, float]]:
    return list(zip(curve.steps, curve.values, strict=True))


def _points(pairs: Sequence[tuple[int, float]], scale: _Scale) -> str:
    return " ".join(f"{scale.x(step):.1f},{scale.y(value):.1f}" for step, value in pairs)


def _key(line: Line, reading: Markup) -> Markup:
    return element("span", line.label, " ", reading, class_=f"key colour{line.colour}")


def _data(panel: Panel, scale: _Scale) -> str:
    """What the reading under the pointer needs: the place of each step, and the values as they are shown."""
    curves = []
    for line in panel.lines:
        curve = thin(line.curve, BUCKETS)
        curves.append({"steps": curve.steps, "shown": [number(value) for value in curve.values]})
    frame = {"first": scale.first, "last": scale.last, "left": LEFT / WIDTH, "right": 1 - RIGHT / WIDTH}
    return json.dumps({**frame, "width": WIDTH, "curves": curves}, separators=(",", ":"), ensure_ascii=False)
