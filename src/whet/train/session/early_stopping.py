"""Early stopping: which metric is watched, and when a run ends before its last step."""

import math
from collections.abc import Iterable, Mapping, Sequence

from whet.config import EarlyStoppingConfig, TrainConfig
from whet.errors import UserError
from whet.evaluate.measures import Measure, is_count, measure_of


def over_budget(metrics: Mapping[str, float], settings: EarlyStoppingConfig) -> str:
    """Why `early_stopping.kl` ends the run, else empty."""
    if settings.kl is None or metrics.get("kl_rollout", 0.0) <= settings.kl:
        return ""
    return f"rollouts are {metrics['kl_rollout']:.3g} nats from the reference, above early_stopping.kl {settings.kl:g}"


def watched_measure(settings: EarlyStoppingConfig, best: Measure) -> Measure:
    """`early_stopping.metric`, else the measure that selects the best model."""
    return measure_of(settings.metric) if settings.metric else best


def watched(rows: Iterable[Mapping[str, float | None]], settings: EarlyStoppingConfig, measure: Measure) -> list[float]:
    """The values of a measure in these rows; none without patience."""
    known = (row.get(measure.metric) for row in rows) if settings.patience else ()
    return [value for value in known if value is not None and math.isfinite(value)]


def past_best(values: Sequence[float], settings: EarlyStoppingConfig, measure: Measure) -> str:
    """Why `early_stopping.patience` ends the run after these values, else empty."""
    if not settings.patience or not values:
        return ""
    sign = 1 if measure.is_higher_better else -1
    since = len(values) - 1 - max(range(len(values)), key=lambda place: (sign * values[place], place))
    if since < settings.patience:
        return ""
    side, extreme = ("below", max(values)) if sign > 0 else ("above", min(values))
    return f"{measure.metric} has been {side} its best, {extreme:.4g}, for {since} evaluations"


def require_measured(config: TrainConfig, measured: Mapping[str, float]) -> None:
    """Refuses metrics in `best` and `early_stopping` that evaluations do not have."""
    asked = {"best.metric": config.best.metric}
    asked |= {"early_stopping.metric": config.early_stopping.metric} if config.early_stopping.patience else {}
    for key, metric in asked.items():
        if metric and metric not in measured:
            usable = (name for name in measured if not name.endswith(("_low", "_high")) and not is_count(name))
            known = ", ".join(usable)
            raise UserError(f"{key} is {metric!r}, which is not measured here; use one of {known}")
