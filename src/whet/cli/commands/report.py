"""`whet report`: figures and page of a run, a comparison or a pipeline."""

from __future__ import annotations

from pathlib import Path

import typer

from whet.cli.terminal import say
from whet.errors import UserError

TIP = "Directory of a run (finished or not), of a comparison, or of a pipeline (for its comparison)."
Report = tuple[Path, list[str]]  # the page, and headline numbers as lines


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


def _write(path: Path) -> Report:
    """Writes the page of a run, comparison or pipeline."""
    from whet.runs.directory import RunDirectory
    from whet.runs.experiment_directories import PipelineDirectory, first_of_several, is_comparison, is_pipeline

    if is_pipeline(path):
        compared = PipelineDirectory.open(path).comparison_path
        if not is_comparison(compared):
            raise UserError(f"pipeline {path} has no comparison yet: continue with whet train {path} --resume")
        return _comparison(compared)
    if is_comparison(path):
        return _comparison(path)
    if RunDirectory.find(path) is not None:
        return _run(path)
    one = first_of_several(path)
    if one is not None:
        raise UserError(f"{path} holds several runs and no comparison of them; name one of them, e.g. {one}")
    raise UserError(f"{path} is neither a run nor a comparison; name a directory that whet train or whet compare made")


def _comparison(path: Path) -> Report:
    from whet.report.comparison.comparison_page import write_page
    from whet.runs.experiment_directories import ComparisonDirectory

    directory = ComparisonDirectory(path)
    return directory.page_path, list(write_page(directory).verdict)


def _run(path: Path) -> Report:
    from whet.report.run.page import ACCURACY, LOSS, evaluations, write_report
    from whet.runs.directory import RunDirectory

    page = write_report(path)
    run = RunDirectory.open(path, is_writer=False)
    metrics, results = run.metrics(), run.results()
    lines = []
    for label, names, shown in (
        ("held-out accuracy: {} (95 % intervals)", ACCURACY, "{:.1%} [{:.1%} … {:.1%}]"),
        ("held-out loss: {}", LOSS, "{:.4f}"),
    ):
        ends = evaluations(metrics, results, names)
        if ends is not None:
            values = [shown.format(*(row[name] for name in names)) for row in ends]
            lines.append(label.format(values[1] if ends[0] is ends[1] else " → ".join(values)))
    return page, lines or ["no evaluation yet"]
