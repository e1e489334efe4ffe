"""Training curves of compared methods: one picture per metric, one line per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.report.series import series, thin
from whet.runs.directory import Run

# (metric, title, unit), in the order in which they are drawn; parts of the reward follow.
METRICS = (
    ("reward/mean", "Reward", "mean per rollout"),
    ("eval/gold", "Held-out gold reward", "mean per prompt"),
    ("eval/accuracy", "Held-out accuracy", "share of prompts"),
    ("kl", "KL to the reference", "nats per token"),
    ("length/mean", "Length", "tokens per rollout"),
)
PARTS = "parts/"
BUCKETS = 200  # points of a curve that are kept: at most two for each


def read_curves(run: Run) -> dict[str, dict[str, list[float]]]:
    """Metric → its steps and values, for the metrics that a contest shows."""
    rows = run.metrics()
    parts = sorted({name for row in rows for name in row if name.startswith(PARTS)})
    curves: dict[str, dict[str, list[float]]] = {}
    for name in [*(metric for metric, _, _ in METRICS), *parts]:
        curve = thin(series(rows, name), BUCKETS)
        if len(curve) > 1:
            curves[name] = {"steps": list(curve.steps), "values": list(curve.values)}
    return curves


def titles(curves: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(metric, title, unit) of everything that at least one run logged."""
    found = {metric for seeds in curves.values() for own in seeds.values() for metric in own}
    parts = sorted(metric for metric in found if metric.startswith(PARTS))
    known = [entry for entry in METRICS if entry[0] in found]
    return known + [(metric, f"Part: {metric.removeprefix(PARTS)}", "mean per rollout") for metric in parts]
