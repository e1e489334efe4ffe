"""Every question that the page asks, by name."""

from collections.abc import Callable
from typing import Any

from whet.ui.answers.listing import every_run
from whet.ui.answers.one_run import curves, diagnosis, held_out, overview
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources

Answer = Callable[[Sources, Query], dict[str, Any]]

QUESTIONS: dict[str, Answer] = {
    "runs": every_run,
    "run": overview,
    "curves": curves,
    "doctor": diagnosis,
    "held_out": held_out,
}
