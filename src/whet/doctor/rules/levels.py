"""Levels by two limits, which most rules have."""

from whet.doctor.findings import Evidence, Level
from whet.runs.series import Series


def level_of(value: float, limits: tuple[float, float]) -> Level:
    """A note from the first limit on, a warning from the second."""
    return "ok" if value < limits[0] else "note" if value < limits[1] else "warning"


def newest(curve: Series, metric: str, text: str = "") -> Evidence:
    """The newest value of a curve."""
    return Evidence(metric=metric, step=curve.steps[-1], text=text or f"{metric} {curve.values[-1]:.3g}")


def largest(curve: Series, metric: str) -> Evidence:
    """The largest value of a curve."""
    worst = max(range(len(curve)), key=curve.values.__getitem__)
    return Evidence(metric=metric, step=curve.steps[worst], text=f"{metric} {curve.values[worst]:.3g}")


def typical(values: tuple[float, ...]) -> float:
    """The median."""
    return sorted(values)[len(values) // 2]
