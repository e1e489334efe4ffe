"""Several runs that belong together: a pipeline, a comparison of methods; and the survey of a data set."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.report.comparison.contest_view import contest_view
from whet.report.comparison.entries import ComparisonView
from whet.report.comparison.sweep_results import sweep_view
from whet.runs import layout
from whet.runs.catalogue import runs_below
from whet.runs.experiment_directories import (
    PAGE,
    ComparisonDirectory,
    PipelineDirectory,
    is_comparison,
    is_pipeline,
)
from whet.ui.answers.listing import about_run
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources
from whet.ui.answers.standings import UNREADABLE, said
from whet.ui.library import SURVEY


def experiment(sources: Sources, query: Query) -> dict[str, Any]:
    """A pipeline or a comparison: its runs, and the comparison of its methods as far as there is one."""
    name = query.text("in")
    directory = sources.library.directory(name)
    runs = [about_run(sources, path, name) for path in runs_below(directory)]
    compared, config, problems = directory, "", []
    if is_pipeline(directory):
        compared = PipelineDirectory.open(directory).comparison_path
        try:
            config = PipelineDirectory.open(directory).config_yaml()
        except (UserError, RunFailed) as error:
            problems.append(said(error))
    found = None
    if is_comparison(compared):
        sources.library.directory(sources.library.name(compared))  # raises if it is dangerous
        try:
            found = _told(compared)
        except UNREADABLE as error:
            problems.append(said(error))
    elif not runs and not is_pipeline(directory):
        raise UserError(f"{name} is neither a pipeline nor a comparison of runs")
    return {
        "name": name,
        "kind": "pipeline" if is_pipeline(directory) else "comparison",
        "recipe": layout.recipe_of(directory),
        "config": config,
        "runs": runs,
        "comparison": found,
        "page": {"in": sources.library.name(compared), "file": PAGE} if (compared / PAGE).is_file() else None,
        "problems": problems,
    }


def survey(sources: Sources, query: Query) -> dict[str, Any]:
    """Where the page of a data set is."""
    directory = sources.library.directory(query.text("in"))
    if not (directory / SURVEY).is_file():
        raise UserError(f"{query.text('in')} has no {SURVEY}: make it with whet data explore DATA --out DIR")
    return {"name": query.text("in"), "page": {"in": query.text("in"), "file": SURVEY}}


def _told(compared: Path) -> dict[str, Any]:
    """The view that the report shows, without its curves."""
    results = ComparisonDirectory(compared).results()
    view: ComparisonView = contest_view(results) if results["kind"] == "contest" else sweep_view(results)
    told = {
        name: getattr(view, name) for name in ("title", "facts", "verdict", "columns", "notes", "failures", "command")
    }
    entries = [
        {"name": one.name, "is_start": one.colour is None, "cells": [asdict(cell) for cell in one.cells]}
        for one in view.entries
    ]
    return {**told, "entries": entries}
