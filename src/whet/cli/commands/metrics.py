"""`whet metrics`: what runs log, and what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json
from whet.errors import UserError, nearest

if TYPE_CHECKING:
    from whet.metrics.metric import Metric

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]…", help="Names of metrics, parts of them, or their names in TRL, verl or OpenRLHF."),
]


def metrics(names: Names = None, as_json: arguments.AsJson = False) -> None:
    """Explain metrics: formula, healthy range, what moves them.

    Without NAME a line for each; with it everything about those. docs/metrics.md has all of it, with pictures of runs.

    \b
    Examples:
      whet metrics
      whet metrics kl eval/accuracy
      whet metrics response_length/mean --json
    """
    from whet.metrics.table import TOPICS

    found = [metric for name in names for metric in _found(name)] if names else None
    if as_json:
        topics = {metric.name: topic for topic, rows in TOPICS.items() for metric in rows}
        every = [metric for rows in TOPICS.values() for metric in rows] if found is None else found
        say_json([{"topic": topics[metric.name], **asdict(metric)} for metric in dict.fromkeys(every)])
        return
    if found is None:
        for topic, rows in TOPICS.items():
            say(f"{topic}:")
            for metric in rows:
                say(f"  {metric.name}: {metric.label}")
        return
    for metric in dict.fromkeys(found):
        for line in _lines(metric):
            say(line)


def _found(name: str) -> list[Metric]:
    """The row of a metric of this name; else those that have it in their name, in words or in another library."""
    from whet.metrics.table import METRICS, row_of

    if (row := row_of(name)) is not None:
        return [row]
    words = name.lower()
    found = [metric for metric in METRICS if words in metric.name.lower()] or [
        metric for metric in METRICS if words in " ".join((metric.label, *metric.elsewhere.values())).lower()
    ]
    if not found:
        like = nearest(words, (metric.name for metric in METRICS))
        raise UserError(f"no metric has {name!r} in its name{like or '; whet metrics lists all'}")
    return found


def _lines(metric: Metric) -> Iterator[str]:
    """Everything about a metric."""
    unit = f" ({metric.unit})" if metric.unit else ""
    better = f"; {metric.better} is better" if metric.better else ""
    yield f"{metric.name}: {metric.label}{unit}{better}"
    yield f"  formula  {metric.formula}"
    if metric.has_interval:
        yield f"           {metric.name}_low and {metric.name}_high are the ends of its 95 % interval"
    yield f"  healthy  {metric.healthy}"
    yield f"  rises    {metric.rises}"
    yield f"  falls    {metric.falls}"
    yield f"  logged   by {', '.join(metric.loops)}" + (f"; needs {metric.needs}" if metric.needs else "")
    if metric.rules:
        yield f"  doctor   {', '.join(metric.rules)}"
    if metric.elsewhere:
        yield "  others   " + "; ".join(f"{library} {name}" for library, name in metric.elsewhere.items())
    yield f"  code     {metric.code}"
