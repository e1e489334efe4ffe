"""The few files that are given out as they are."""

from pathlib import Path

from whet.errors import UserError
from whet.runs import layout
from whet.runs.experiment_directories import PAGE
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources
from whet.ui.library import SURVEY

GIVEN = (layout.REPORT, PAGE, SURVEY, layout.ANALYSIS_PICTURE)


def found_file(sources: Sources, query: Query) -> Path:
    directory = sources.library.directory(query.text("in"))
    path = directory / query.one_of("file", GIVEN)
    if not path.is_file():
        raise UserError(f"{query.text('in')} has no {path.name}")
    return path
