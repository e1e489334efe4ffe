"""The interface of a cell: terms (supplied by the loop), options (keyword-only, set by a recipe), and the formula.

What the signature cannot say is declared: a surrogate that is `per_sequence`, an advantage that is `per_token`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

Cell = Callable[..., Any]
AnyCell = TypeVar("AnyCell", bound=Cell)


def per_sequence(cell: AnyCell) -> AnyCell:
    """Declares a surrogate with one ratio for a whole sequence: each of its tokens carries the loss of the sequence."""
    plain(cell).__dict__["one_per"] = "sequence"
    return cell


def per_token(cell: AnyCell) -> AnyCell:
    """Declares an advantage that differs between the tokens of one rollout."""
    plain(cell).__dict__["one_per"] = "token"
    return cell


def is_per_sequence(surrogate: Cell) -> bool:
    """Whether a surrogate has one ratio for a whole sequence; unless it is declared, it has one per token."""
    return getattr(plain(surrogate), "one_per", None) == "sequence"


def is_per_token(advantage: Cell) -> bool:
    """Whether an advantage differs between the tokens of one rollout; unless it is declared, it does not."""
    return getattr(plain(advantage), "one_per", None) == "token"


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
