"""Early stopping: which metric is watched, when a run ends before its last step, and which model was its best."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whet.config import EarlyStoppingConfig
from whet.config.loops import Trained
from whet.errors import UserError
from whet.evaluate.measures import Measure, is_count, measure_of, measures_in


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


def without_improvement(values: Sequence[float], settings: EarlyStoppingConfig, measure: Measure) -> str:
    """Why `early_stopping.patience` ends the run after these values, else empty."""
    if not settings.patience or not values:
        return ""
    best = max(values) if measure.is_higher_better else min(values)
    since = len(values) - 1 - values.index(best)  # of equal values the first: a tie is no improvement
    if since < settings.patience:
        return ""
    evaluations = "1 evaluation" if since == 1 else f"{since} evaluations"
    return f"{measure.metric} has not improved on its best, {best:.4g}, for {evaluations}"


def is_new_best(best: Mapping[str, Any], before: Mapping[str, Any], now: Mapping[str, Any], measure: Measure) -> bool:
    """Whether an evaluation replaces the best one so far, whose metrics are `before`.

    If `measure` is equal, the other headline measures decide, such as the loss while no answer is right yet. Of models
    that are equal in all of them the first trained one is kept.
    """
    if not best:
        return True
    for one in (measure, *measures_in(now)):
        old, new = before.get(one.metric), now[one.metric]
        if old is not None and new != old:
            return one.is_better(new, than=old)
    return bool(best["step"] == 0)  # nobody trains to get the start model back


def require_measured(config: Trained, measured: Mapping[str, float]) -> None:
    """Refuses metrics in `best` and `early_stopping` that evaluations do not have."""
    asked = {"best.metric": config.best.metric}
    asked |= {"early_stopping.metric": config.early_stopping.metric} if config.early_stopping.patience else {}
    for key, metric in asked.items():
        if metric and metric not in measured:
            usable = (name for name in measured if not name.endswith(("_low", "_high")) and not is_count(name))
            known = ", ".join(usable)
            raise UserError(f"{key} is {metric!r}, which is not measured here; use one of {known}")
