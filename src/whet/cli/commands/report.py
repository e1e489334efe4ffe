"""`whet report`: figures and page of a run, a comparison or a pipeline."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json
from whet.errors import UserError

TIP = "Directory of a run (finished or not), of a comparison, or of a pipeline (for its comparison)."


def report(
    directory: str = typer.Argument(..., metavar="DIR", help=TIP),
    show: bool = typer.Option(False, "--open", help="Open the report in a browser."),
    as_json: arguments.AsJson = False,
) -> None:
    """Rewrite the HTML report of a run or a comparison. Prints its headline numbers too.

    --json prints its path with the held-out results before and after training and the health findings of a run, or with
    the verdict of a comparison and the path of its numbers.

    \b
    Examples:
      whet report @last --open
      whet report runs/20260101-120000-grpo-sorting --json
      whet report runs/20260101-120000-rlhf-reviews
    """
    found = _write(arguments.run_directory(directory))
    if as_json:
        say_json(found)
    else:
        for line in (f"report: {found['report']}", *found.get("verdict", ()), *_lines(found.get("held_out"))):
            say(line)
    if show:
        typer.launch(Path(found["report"]).resolve().as_uri())


def _write(path: Path) -> dict[str, Any]:
    """Writes the page of a run, comparison or pipeline; returns what --json prints."""
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


def _comparison(path: Path) -> dict[str, Any]:
    from whet.report.comparison.comparison_page import write_page
    from whet.runs.experiment_directories import ComparisonDirectory

    directory = ComparisonDirectory(path)
    verdict = write_page(directory).verdict
    return {"report": str(directory.page_path), "numbers": str(directory.results_path), "verdict": verdict}


def _run(path: Path) -> dict[str, Any]:
    from whet.doctor.examine import examine_run
    from whet.evaluate.measures import evaluations
    from whet.report.run.page import write_report
    from whet.runs.directory import RunDirectory

    page, run = write_report(path), RunDirectory.open(path, is_writer=False)
    measured = evaluations(run.metrics(), run.results())
    return {
        "report": str(page),
        "curves": str(run.curves_path),
        "finished": run.finished,
        "held_out": {
            one.label: [
                {name: row[name] for name in (one.metric, *one.interval, *one.counts) if row.get(name) is not None}
                for row in rows
            ]
            for one, rows in measured.items()
        },
        "health": [asdict(finding) for finding in examine_run(run).findings],
    }


def _lines(held_out: dict[str, list[dict[str, float]]] | None) -> list[str]:
    """Held-out results, before → after."""
    from whet.evaluate.measures import measure_of
    from whet.report.run.page import outcome_line

    lines = [outcome_line(measure_of(next(iter(rows[0]))), rows) for rows in (held_out or {}).values()]
    return ["no evaluation yet"] if held_out == {} else lines
