"""Early stopping: a KL budget, and a held-out metric that no longer improves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from whet.config import StopConfig
from whet.errors import UserError


def over_budget(metrics: Mapping[str, float], stop: StopConfig) -> str:
    """Why a run has spent its KL, or nothing."""
    if stop.kl is None or metrics.get("kl_rollout", 0.0) <= stop.kl:
        return ""
    return f"rollouts are {metrics['kl_rollout']:.3g} nats from the reference, above stop.kl {stop.kl:g}"


def watched(rows: Iterable[Mapping[str, float | None]], stop: StopConfig) -> list[float]:
    """What evaluations say of the metric that early stopping looks at, where it looks at one."""
    known = (row.get(stop.metric) for row in rows) if stop.falls else ()
    return [value for value in known if value is not None and math.isfinite(value)]


def past_best(values: Sequence[float], stop: StopConfig) -> str:
    """Early stopping: why a run is past its best (over-optimised, if its training reward still rises), or nothing."""
    if not stop.falls or not values:
        return ""
    since = len(values) - 1 - max(range(len(values)), key=lambda place: (values[place], place))
    if since < stop.falls:
        return ""
    return f"{stop.metric} has been below its best, {max(values):.4g}, for {since} evaluations"


def require_measured(stop: StopConfig, measured: Mapping[str, float]) -> None:
    """Refuses to wait for the fall of a number that no evaluation gives."""
    if stop.falls and stop.metric not in measured:
        raise UserError(f"stop.metric is {stop.metric!r}, which is not measured here; use one of {', '.join(measured)}")
