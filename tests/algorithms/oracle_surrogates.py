"""The oracle's loss of one token, case by case where the papers write min, max and clip."""

from __future__ import annotations

from math import exp
from typing import Any

from .batches import Array, Case


def reinforce(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    return -a[b, t] * new[b, t]


def clip(new: Array, case: Case, a: Array, b: int, t: int, low: float = 0.2, high: float = 0.2) -> float:
    return -_pessimistic(exp(new[b, t] - case.old[b, t]), a[b, t], low, high)


def dual_clip(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    objective = _pessimistic(exp(new[b, t] - case.old[b, t]), a[b, t], 0.2, 0.2)
    return -objective if a[b, t] >= 0 else -max(objective, 3.0 * a[b, t])


def stopped_ratio(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    fixed = exp(case.new[b, t] - case.old[b, t])  # not `new`: no gradient passes here
    return -min(max(fixed, 0.0), 5.0) * a[b, t] * new[b, t]


def soft_gate(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    sharpness = 1.0 if a[b, t] > 0 else 1.05
    gate = 1 / (1 + exp(-sharpness * (exp(new[b, t] - case.old[b, t]) - 1)))
    return -4 / sharpness * gate * a[b, t]


def sequence_clip(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    times = [s for s in range(len(case.mask[b])) if case.mask[b][s]]
    product = 1.0
    for s in times:
        product *= exp(new[b, s]) / exp(case.old[b, s])
    return -_pessimistic(product ** (1 / len(times)), a[b, t], 3e-4, 4e-4)


def geometric_clip(new: Array, case: Case, a: Array, b: int, t: int) -> float:
    times = [s for s in range(len(case.mask[b])) if case.mask[b][s]]
    total = 0.0
    for s in times:
        log_ratio = new[b, s] - case.old[b, s]
        total += min(log_ratio, 0.4) if a[b, t] > 0 else max(log_ratio, -0.4)
    return -exp(total / len(times)) * a[b, t]


def _pessimistic(ratio: float, advantage: float, low: float, high: float) -> float:
    """ρA, but a good token earns no more above 1 + high and a bad one loses no more below 1 − low."""
    if advantage > 0 and ratio > 1 + high:
        return (1 + high) * advantage
    if advantage < 0 and ratio < 1 - low:
        return (1 - low) * advantage
    return ratio * advantage


SURROGATES: dict[str, Any] = {
    cell.__name__: cell
    for cell in (reinforce, clip, dual_clip, stopped_ratio, soft_gate, sequence_clip, geometric_clip)
}
