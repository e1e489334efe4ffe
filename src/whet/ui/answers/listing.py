"""Everything in the folder: runs, pipelines, comparisons, surveys of data, newest first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.runs.experiment_directories import first_of_several, is_comparison, is_pipeline
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources
from whet.ui.answers.standings import UNREADABLE, said


def every_run(sources: Sources, _: Query) -> dict[str, Any]:
    """One entry for each directory; runs inside of others name the one that they are in."""
    library = sources.library
    entries = entries_of(sources, library.experiments(), library.runs())
    entries += [{"name": library.name(path), "kind": "survey", "in": "", "problems": []} for path in library.surveys()]
    shown = [entry for entry in reversed(entries) if _is_text(entry["name"])]
    left_out = len(entries) - len(shown)
    return {
        "folder": str(library.folder),
        "alone": library.alone,
        "entries": shown,
        "problems": [f"{left_out} with names that are no valid text are left out"] if left_out else [],
    }


def entries_of(sources: Sources, experiments: Sequence[Path], runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Entries of the pipelines and comparisons among some experiments, then of runs."""
    groups = {path: kind for path in experiments if (kind := _kind_of_group(path))}
    above = {
        run: next((sources.library.name(group) for group in groups if run.is_relative_to(group)), "") for run in runs
    }
    return [
        *(_group(sources, path, kind) for path, kind in groups.items()),
        *(about_run(sources, run, name) for run, name in above.items()),
    ]


def _kind_of_group(path: Path) -> str:
    if is_pipeline(path):
        return "pipeline"
    return "comparison" if is_comparison(path) or first_of_several(path) else ""


def _group(sources: Sources, path: Path, kind: str) -> dict[str, Any]:
    return {"name": sources.library.name(path), "kind": kind, "in": "", "problems": []}


def about_run(sources: Sources, path: Path, above: str) -> dict[str, Any]:
    """A run with its standing; `above`: what it is in."""
    name = sources.library.name(path)
    entry = {"name": name, "kind": "run", "in": above}
    try:
        return {**entry, "standing": sources.standings.of(sources.library.run(name))}
    except UNREADABLE as error:
        return {**entry, "standing": {"status": "damaged", "step": 0, "problems": [said(error)]}}


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
