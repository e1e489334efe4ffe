"""Runs of tests may only log metrics that have a row in the table."""

from collections.abc import Callable, Mapping
from functools import wraps

import pytest

from whet.metrics.table import row_of
from whet.runs.directory import RunDirectory

Write = Callable[[RunDirectory, int, Mapping[str, float]], None]


class NoRow(AssertionError):
    """A metric is logged that the table does not have."""


def checked(write: Write) -> Write:
    @wraps(write)
    def log(run: RunDirectory, step: int, values: Mapping[str, float]) -> None:
        unknown = sorted(name for name in values if row_of(name) is None)
        if unknown:
            raise NoRow(f"{', '.join(unknown)}: add a row to whet/metrics, and say what it means there")
        write(run, step, values)

    return log


def guard(patch: pytest.MonkeyPatch) -> None:
    for name in ("log", "log_times"):
        patch.setattr(RunDirectory, name, checked(getattr(RunDirectory, name)))
