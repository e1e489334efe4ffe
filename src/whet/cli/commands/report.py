"""`whet report`: the pictures and the page of a run, of a comparison or of a pipeline's methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from whet.cli.terminal import say
from whet.errors import UserError

TIP = "Directory of a run (finished or not), of a comparison, or of a pipeline (for its comparison)."
Told = tuple[Path, list[str]]  # what to look at, and what to say


def report(
    directory: Path = typer.Argument(..., metavar="DIR", help=TIP),
    show: bool = typer.Option(False, "--open", help="Open the report in a browser."),
) -> None:
    """Rewrite the HTML report of a run or a comparison. Prints its headline numbers too.

    \b
    Examples:
      whet report runs/20260101-120000-grpo-sorting --open
      whet report runs/20260101-120000-rlhf-reviews
    """
    page, lines = _write(directory.expanduser())
    for line in (f"report: {page}", *lines):
        say(line)
    if show:
        typer.launch(page.resolve().as_uri())


def _write(path: Path) -> Told:
    """Writes what belongs to the kind of directory that it is."""
    from whet.runs.comparison import first_of_several, is_comparison
    from whet.runs.directory import Run
    from whet.runs.judged import is_judged
    from whet.runs.pipeline import PipelineDirectory, is_pipeline

    if is_pipeline(path):
        judged = PipelineDirectory.open(path).comparison_path
        if not is_judged(judged):
            raise UserError(f"pipeline {path} has no comparison yet: go on with whet train {path} --resume")
        return _methods(judged)
    if is_judged(path):
        return _methods(path)
    if is_comparison(path):
        return _trials(path)
    if Run.find(path) is not None:
        return _run(path)
    one = first_of_several(path)
    if one is not None:
        raise UserError(f"{path} holds several runs and no comparison of them; name one of them, e.g. {one}")
    raise UserError(f"{path} is neither a run nor a comparison; name a directory that whet train or whet compare made")


def _methods(path: Path) -> Told:
    from whet.report.comparison.methods_page import write_methods_page
    from whet.report.comparison.methods_verdict import verdict
    from whet.runs.judged import JudgedDirectory

    judged = JudgedDirectory(path)
    write_methods_page(judged)
    return judged.page_path, verdict(judged.results())


def _trials(path: Path) -> Told:
    from whet.report.comparison.comparison_writer import rewrite_comparison
    from whet.runs.comparison import ComparisonDirectory

    directory = ComparisonDirectory(path)
    written = rewrite_comparison(directory)
    return directory.table_path, [f"curves: {directory.curves_path}", written.verdict.sentence]


def _run(path: Path) -> Told:
    from whet.report.run.headline import ACCURACY, LOSS, evaluations
    from whet.report.run.page import write_report
    from whet.runs.directory import Run

    page = write_report(path)
    run = Run.open(path, is_writer=False)
    metrics, results = run.metrics(), run.results()
    measured = evaluations(metrics, results, ACCURACY)
    losses = evaluations(metrics, results, LOSS)
    lines = []
    if measured:
        lines.append(f"held-out accuracy: {_change(*measured, _accuracy)} (95 % intervals)")
    if losses:
        lines.append(f"held-out loss: {_change(*losses, _loss)}")
    return page, lines or ["no evaluation yet"]


def _change(before: Mapping[str, Any], after: Mapping[str, Any], tell: Any) -> str:
    return str(tell(after)) if before is after else f"{tell(before)} → {tell(after)}"


def _accuracy(row: Mapping[str, Any]) -> str:
    low, high = row["eval/accuracy_low"], row["eval/accuracy_high"]
    return f"{row['eval/accuracy']:.1%} [{low:.1%} … {high:.1%}]"


def _loss(row: Mapping[str, Any]) -> str:
    return f"{row['eval/loss']:.4f}"
