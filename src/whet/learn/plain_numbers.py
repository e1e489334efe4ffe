"""Arithmetic of oracles on plain lists: slow, exact, and without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]
Matrix = list[list[float]]
Mask = list[list[bool]]


def softmax(logits: Sequence[float]) -> Vector:
    """exp(x_i) / Σ_j exp(x_j)."""
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def log_softmax(logits: Sequence[float]) -> Vector:
    """x_i − log Σ_j exp(x_j)."""
    highest = max(logits)
    total = highest + math.log(sum(math.exp(logit - highest) for logit in logits))
    return [logit - total for logit in logits]


def log_sigmoid(number: float) -> float:
    """log σ(x), exact for large |x|."""
    return min(0.0, number) - math.log1p(math.exp(-abs(number)))


def mean(numbers: Sequence[float]) -> float:
    """Their mean; 0 of none."""
    return sum(numbers) / len(numbers) if numbers else 0.0


def deviation(numbers: Sequence[float], correction: int = 1) -> float:
    """The standard deviation, by default with Bessel's correction."""
    middle = mean(numbers)
    return math.sqrt(sum((number - middle) ** 2 for number in numbers) / (len(numbers) - correction))


def chosen(values: Matrix, mask: Mask) -> Vector:
    """The values where the mask is True."""
    return [v for row, marks in zip(values, mask, strict=True) for v, mark in zip(row, marks, strict=True) if mark]
