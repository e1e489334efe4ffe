"""Shared by pictures and page of a comparison: labels of its numbers, and the colour of each method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from whet.report.comparison.comparison_curves import COLOURS, DASHES
from whet.report.numbers import number

Values = Mapping[str, Any]  # a part of final_results.json
START_COLOUR = "#59636e"
MARKERS = ("o", "s", "^")
TRUTHS = {"gold": "gold reward", "score": "score by the task", "judge": "judge's reward"}


def truth_label(results: Values) -> str:
    """What the score is called that the proxy is held against."""
    return TRUTHS.get(results["truth"], "reward")


def task_key(results: Values) -> str | None:
    """What the task itself said: its true reward (gold), its own score, or nothing."""
    # Files of before there was a difference have no score.
    return next((key for key in ("gold", "score") if results["start"].get(key) is not None), None)


def style(colour: int) -> dict[str, Any]:
    """How a method's lines are drawn."""
    return {"color": COLOURS[colour % len(COLOURS)], "linestyle": DASHES[colour // len(COLOURS) % len(DASHES)]}


def marker(colour: int) -> str:
    """The shape of a method's points: another one where colours come again."""
    return MARKERS[colour // len(COLOURS) % len(MARKERS)]


def judged_methods(results: Values) -> list[Values]:
    """The methods that have numbers, best first."""
    return [method for method in results["methods"] if method["summary"] is not None]


def ends(interval: Values, *, scale: float = 1.0) -> tuple[float, float, float]:
    """Mean, low and high, those of one prompt alone at its mean: one value has no interval."""
    mean = interval["mean"] * scale
    low, high = interval["low"], interval["high"]
    return mean, mean if low is None else low * scale, mean if high is None else high * scale


def bracketed(interval: Values | None, *, scale: float = 1.0) -> str:
    """[low … high], or nothing where there is no interval."""
    if interval is None or interval["low"] is None:
        return ""
    return f"[{fixed(interval['low'] * scale, interval, scale)} … {fixed(interval['high'] * scale, interval, scale)}]"


def mean_text(interval: Values | None, *, sign: bool = False, scale: float = 1.0) -> str:
    """The mean, or a dash where nothing was measured."""
    if interval is None:
        return "–"
    mean = interval["mean"] * scale
    return ("+" if sign and mean > 0 else "") + fixed(mean, interval, scale)


def fixed(value: float, interval: Values, scale: float = 1.0) -> str:
    """A value to the digits that its interval leaves meaningful: two of half its width."""
    if interval["low"] is None or interval["high"] <= interval["low"]:
        return number(value)
    half = scale * (interval["high"] - interval["low"]) / 2
    digits = min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:,.{digits}f}".replace("-", "−")


def clears(interval: Values | None, level: float) -> int:
    """1 where the whole interval is above the level, −1 where it is below, else 0."""
    if interval is None or interval["low"] is None:
        return 0
    return int(interval["low"] > level) - int(interval["high"] < level)
