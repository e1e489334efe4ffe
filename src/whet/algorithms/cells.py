"""The interface of a cell: terms (supplied by the loop), options (keyword-only, set by a recipe), and the formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Cell = Callable[..., Any]


def terms(cell: Cell) -> tuple[str, ...]:
    """The arguments that the loop must supply, by name."""
    return tuple(p.name for p in _parameters(cell) if p.kind is not p.KEYWORD_ONLY)


def options(cell: Cell) -> dict[str, Any]:
    """The options that a recipe may set, with the values they have."""
    return {p.name: p.default for p in _parameters(cell) if p.kind is p.KEYWORD_ONLY}


def call(cell: Cell, supply: Mapping[str, Any]) -> Any:
    """Calls a cell with the terms it names."""
    return cell(*(supply[name] for name in terms(cell)))


def bind(cell: Cell, values: Mapping[str, Any]) -> Cell:
    """The cell with these options set; the cell itself when there are none."""
    return partial(plain(cell), **{**options(cell), **values}) if values else cell


def plain(cell: Cell) -> Cell:
    """The function behind a cell, without its options."""
    return cell.func if isinstance(cell, partial) else cell


def name(cell: Cell) -> str:
    """What the cell is called in a recipe."""
    return str(plain(cell).__name__)


def formula(cell: Cell) -> str:
    """The first line of the cell's docstring, with the options that are set."""
    line = (inspect.getdoc(plain(cell)) or name(cell)).splitlines()[0]
    settings = ", ".join(f"{key}={value}" for key, value in options(cell).items())
    return f"{line} [{settings}]" if settings else line


def _parameters(cell: Cell) -> list[inspect.Parameter]:
    return list(inspect.signature(cell).parameters.values())
