"""Missing log lines. A kill takes none, so whatever is missing was deleted by somebody else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whet.runs import layout
from whet.runs.directory import Run


def lost_lines(run: Run, step: int) -> list[str]:
    """What is missing of the steps up to this one, a sentence each."""
    found = []
    metrics, timings = missing_steps(run.metrics(), 0, step), missing_steps(run.timings(), 1, step)
    if metrics:
        found.append(f"{layout.METRICS} has no lines of {metrics}, so curves and report do without")
    if timings:
        found.append(f"{layout.TIMINGS} has no lines of {timings}, so the results count the seconds of the others")
    return found


def missing_steps(rows: Iterable[Mapping[str, Any]], first: int, last: int) -> str:
    """Which of the steps from `first` to `last` have no row, in words; nothing where each has one."""
    found = {row["step"] for row in rows}
    missing = [step for step in range(first, last + 1) if step not in found]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"step {missing[0]}"
    if missing[-1] - missing[0] == len(missing) - 1:
        return f"steps {missing[0]} to {missing[-1]}"
    return f"{len(missing)} steps between {missing[0]} and {missing[-1]}"
