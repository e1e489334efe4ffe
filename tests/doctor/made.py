"""Runs made by hand: rows of metrics, and the history that rules read."""

from collections import defaultdict

from whet.doctor.history import History
from whet.doctor.settings import Settings, kind_of


def history(*rows, config=None, steps=0, kind=None, **more):
    """A history of these rows; those of one step are merged."""
    merged = defaultdict(dict)
    for row in [row for some in rows for row in (some if isinstance(some, list) else [some])]:
        merged[row["step"]] |= row
    ordered = [merged[step] for step in sorted(merged)]
    names = {name for row in ordered for name in row}
    settings = Settings(config={"loop": "online"} | (config or {}), kind=kind or kind_of({*names, "reward/mean"}))
    return History(rows=ordered, settings=settings, steps=steps, **more)


def constant(name, value, steps=40, **more):
    return [{"step": s, name: value, **more} for s in range(1, steps + 1)]


def ramp(name, first, last, steps=40):
    """Five steps at `first`, a straight line, twenty steps at `last`."""
    values = [first] * 5 + [first + (last - first) * i / (steps - 25) for i in range(steps - 25)] + [last] * 20
    return [{"step": s, name: value} for s, value in enumerate(values, start=1)]


def evals(*means, half=0.05, every=10):
    return [
        {"step": every * i, "eval/accuracy": m, "eval/accuracy_low": m - half, "eval/accuracy_high": m + half}
        for i, m in enumerate(means)
    ]


def curve(name, values):
    return [{"step": step, name: value} for step, value in enumerate(values, start=1)]
