"""Held-out figures of a reward model as the flat numbers of a metrics row."""

from __future__ import annotations

from collections.abc import Mapping

from whet.evaluate.reward_reports import OutcomeReport, PairReport, ProcessReport
from whet.evaluate.statistics import Interval

Report = PairReport | OutcomeReport | ProcessReport


def report_metrics(report: Report) -> dict[str, float]:
    """The numbers of a report under the names that a run records; what could not be measured is left out."""
    shared: dict[str, Interval | float | None] = {
        "accuracy": report.accuracy,
        "calibration_error": report.calibration_error,
    }
    match report:
        case PairReport():
            longer = None if report.longer is None else report.longer.mean
            return _flat(
                {**shared, "margin": report.mean_margin.mean, "ties": report.ties / report.pairs, "longer": longer}
            )
        case OutcomeReport():
            names = ("top", "chance", "ceiling", "pairwise", "area")
            values = (report.top, report.chance, report.ceiling, report.pairwise, report.area)
            return _flat({**shared, **dict(zip(names, values, strict=True))})
    steps = {"fine_recall": report.fine_recall, "bad_recall": report.bad_recall, "area": report.area}
    firsts = {"first_error": report.first_error, "no_error": report.no_error, "first_error_f1": report.f1}
    return _flat({**shared, **steps, **firsts})


def _flat(values: Mapping[str, Interval | float | None]) -> dict[str, float]:
    """What is known, under eval/; an interval also gives its ends."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Interval):
            flat |= {f"eval/{name}": value.mean, f"eval/{name}_low": value.low, f"eval/{name}_high": value.high}
        elif value is not None:
            flat[f"eval/{name}"] = float(value)
    return flat
