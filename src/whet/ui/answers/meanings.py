"""What the metrics of a run mean: their rows in the table of metrics."""

from typing import Any

from whet.metrics.metric import Metric
from whet.metrics.table import row_of
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources

TOLD = ("label", "unit", "formula", "healthy", "rises", "falls", "better", "band", "rules")


def meanings(sources: Sources, query: Query) -> dict[str, Any]:
    """Metric → name of its row, and the rows; a metric that the table does not know is left out."""
    names = sources.standings.names(sources.library.run(query.text("run")))
    rows = {name: row for name in names if (row := row_of(name)) is not None}
    return {
        "of": {name: row.name for name, row in rows.items()},
        "rows": {row.name: _told(row) for row in rows.values()},
    }


def _told(row: Metric) -> dict[str, Any]:
    return {name: getattr(row, name) for name in TOLD}
