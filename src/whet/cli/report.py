"""`whet report`: the pictures and the page of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def report(
    run: Path = typer.Argument(..., metavar="RUN", help="A run directory, finished or not."),
    show: bool = typer.Option(False, "--open", help="Open the report in a browser."),
) -> None:
    """Write training_curves.png and report.html of a run again, and say how it went.

    Example: whet report runs/20260101-120000-grpo-sorting --open
    """
    from whet.report.headline import ACCURACY, LOSS, evaluations
    from whet.report.page import write_report
    from whet.runs.directory import Run

    path = write_report(run.expanduser())
    typer.echo(f"report: {path}")
    opened = Run.open(path.parent, is_writer=False)
    metrics, results = opened.metrics(), opened.results()
    measured = evaluations(metrics, results, ACCURACY)
    losses = evaluations(metrics, results, LOSS)
    if measured:
        typer.echo(f"held-out accuracy: {_change(*measured, _accuracy)} (95 % intervals)")
    if losses:
        typer.echo(f"held-out loss: {_change(*losses, _loss)}")
    if not measured and not losses:
        typer.echo("no evaluation yet")
    if show:
        typer.launch(path.resolve().as_uri())


def _change(before: Mapping[str, Any], after: Mapping[str, Any], tell: Any) -> str:
    return str(tell(after)) if before is after else f"{tell(before)} → {tell(after)}"


def _accuracy(row: Mapping[str, Any]) -> str:
    low, high = row["eval/accuracy_low"], row["eval/accuracy_high"]
    return f"{row['eval/accuracy']:.1%} [{low:.1%} … {high:.1%}]"


def _loss(row: Mapping[str, Any]) -> str:
    return f"{row['eval/loss']:.4f}"
