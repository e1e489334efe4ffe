"""Numbers that follow the run: coefficients and a temperature as functions of what was measured. Plain floats."""

from __future__ import annotations


def adapted(coefficient: float, measured: float, *, target: float, horizon: float, count: int) -> float:
    """β·(1 + clip(KL/target − 1, ±0.2)·min(1, count/horizon)). Ziegler et al. 2019, §2.2."""
    error = min(0.2, max(-0.2, measured / target - 1))
    return coefficient * (1 + error * min(1.0, count / horizon))


def annealed(coefficient: float, tokens: int, *, over: int) -> float:
    """From 0 to β in a straight line over the first `over` tokens."""
    return coefficient * min(1.0, tokens / over) if over > 0 else coefficient


def spread_temperature(temperature: float, deviation: float | None, *, low: float, high: float) -> float:
    """T' = clip(T/σ, low, high), σ the deviation of the last step's rewards: the less they differ, the hotter.

    Before the first step there is no σ and T stays; where all rewards were equal it is `high`.
    """
    if deviation is None:
        return temperature
    return high if deviation == 0 else min(high, max(low, temperature / deviation))


def entropy_bonus(coefficient: float, entropy: float, *, floor: float, floor_coefficient: float) -> float:
    """c + 2·c_floor·max(0, floor − H): the slope of c·H − c_floor·max(0, floor − H)² at the entropy H of the step."""
    return coefficient + 2 * floor_coefficient * max(0.0, floor - entropy)
