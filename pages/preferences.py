"""What docs/algorithms.md says of preferences and reward models; parts of `pages.algorithms`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pages.markdown import header, paper_link, row_line
from whet.algorithms.cells import Cell, options
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS, Preference
from whet.train.explain.formula import UNITS, expression, written


def preference_parts() -> dict[str, Callable[[], Iterable[str]]]:
    """Marked place of the template → its lines."""
    return {"preferences": _preferences, "points": _points, "rewards": _rewards}


def _preferences() -> Iterable[str]:
    yield from header("row", "learns from", "loss of each", "options", "needs", "paper")
    for key, row in PREFERENCES.items():
        yield row_line(
            f"`{key}`", UNITS[row.unit], _formula(row.loss), _options(row.loss), _needs(row), paper_link(row.paper)
        )


def _points() -> Iterable[str]:
    yield from header("row", "point")
    for key, row in PREFERENCES.items():
        if row.point is not None:
            yield row_line(f"`{key}`", _formula(row.point))


def _rewards() -> Iterable[str]:
    yield from header("row", "kind", "what is averaged", "loss of each", "options", "paper")
    for key, row in REWARDS.items():
        yield row_line(
            f"`{key}`", row.kind, UNITS[row.kind], _formula(row.loss), _options(row.loss), paper_link(row.paper)
        )


def _formula(cell: Cell) -> str:
    text, definitions = expression(cell)
    return ", ".join([text, *definitions])


def _options(cell: Cell) -> str:
    return ", ".join(f"`{key}` {written(value)}" for key, value in options(cell).items()) or "–"


def _needs(row: Preference) -> str:
    needs = [what for what, needed in (("a reference", row.needs_reference), ("a point", row.needs_point)) if needed]
    return ", ".join(needs) or "–"
