"""Early stopping: a KL budget, and a held-out metric that no longer improves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from whet.config import EarlyStoppingConfig
from whet.errors import UserError


def over_budget(metrics: Mapping[str, float], settings: EarlyStoppingConfig) -> str:
    """Why a run has spent its KL, or nothing."""
    if settings.kl is None or metrics.get("kl_rollout", 0.0) <= settings.kl:
        return ""
    return f"rollouts are {metrics['kl_rollout']:.3g} nats from the reference, above early_stopping.kl {settings.kl:g}"


def watched(rows: Iterable[Mapping[str, float | None]], settings: EarlyStoppingConfig) -> list[float]:
    """What evaluations say of the metric that early stopping looks at, where it looks at one."""
    known = (row.get(settings.metric) for row in rows) if settings.patience else ()
    return [value for value in known if value is not None and math.isfinite(value)]


def past_best(values: Sequence[float], settings: EarlyStoppingConfig) -> str:
    """Early stopping: why a run is past its best (over-optimised, if its training reward still rises), or nothing."""
    if not settings.patience or not values:
        return ""
    since = len(values) - 1 - max(range(len(values)), key=lambda place: (values[place], place))
    if since < settings.patience:
        return ""
    return f"{settings.metric} has been below its best, {max(values):.4g}, for {since} evaluations"


def require_measured(settings: EarlyStoppingConfig, measured: Mapping[str, float]) -> None:
    """Refuses to wait for the fall of a number that no evaluation gives."""
    if settings.patience and settings.metric not in measured:
        known = ", ".join(measured)
        raise UserError(f"early_stopping.metric is {settings.metric!r}, which is not measured here; use one of {known}")
