"""Columns by other names: `columns: {prompt: question}` reads the column `question` as `prompt`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from whet.errors import UserError, nearest

Columns = Mapping[str, Any]
Settings = Literal["data", "task", "set", "command", "none"]  # where options of a source are written, for advice

# Names of columns that mean the same in published data sets, the usual ones first.
ANSWERS = ("answer", "solution", "final_answer", "ground_truth", "reward_model.ground_truth", "gold", "target", "label")
COMPLETIONS = ("completion", "response", "output", "text")
ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem", "instruction", "query", "input", "context"),
    "answer": (*ANSWERS, *COMPLETIONS),
    "completion": (*COMPLETIONS, *ANSWERS),
    "chosen": ("chosen", "preferred", "better", "accepted", "winner"),
    "rejected": ("rejected", "dispreferred", "worse", "declined", "loser"),
}


def require_columns(mapping: Mapping[str, str], rows: Sequence[Columns], path: str) -> None:
    """Refuses a mapping from a column that none of these rows has."""
    if not isinstance(mapping, Mapping) or not all(isinstance(text, str) for both in mapping.items() for text in both):
        raise UserError(f"columns is {mapping!r:.60}: write names and columns, e.g. {{prompt: question}}")
    seen = column_names(rows)
    for name, column in mapping.items():
        if not any(_found(row, column)[0] for row in rows):
            raise UserError(
                f"columns: {name} is read from {column!r}, which is not a column of {path}"
                f"{nearest(column, seen)} (columns: {', '.join(seen) or 'none'})"
            )


def mapped(row: Columns, mapping: Mapping[str, str]) -> Columns:
    """The row with its columns renamed; a dot reaches into an object, as in `reward_model.ground_truth`."""
    if not mapping:
        return row
    taken = set(mapping.values())
    kept = {name: value for name, value in row.items() if name not in taken and name not in mapping}
    found = {name: _found(row, column) for name, column in mapping.items()}
    return kept | {name: value for name, (is_there, value) in found.items() if is_there}


def renamed_columns(row: Columns, mapping: Mapping[str, str]) -> Columns:
    """The columns of a row that are read by another name, by their own: reward functions may ask for either."""
    return {column: row[column] for column in mapping.values() if column in row and column not in mapping}


def column_names(rows: Iterable[Columns]) -> list[str]:
    """The columns of the rows, each once; those of objects with a dot."""
    names: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            names[name] = None
            if isinstance(value, dict):
                names.update(dict.fromkeys(f"{name}.{inner}" for inner in value))
    return list(names)


def suggestion(names: Sequence[str], *wanted: str, settings: Settings) -> str:
    """What to write for data with these columns, e.g. 'data.columns={prompt: question}'; empty if none fits."""
    found: dict[str, str] = {}
    others: list[str] = []
    for one in wanted:
        near = [alias for alias in ALIASES[one] if alias in names and alias not in found.values()]
        if not near:
            return ""
        found[one] = near[0]
        others += [f"{one}: {alias}" for alias in near[1:] if near[0] != one]
    found = _renamed(found)
    rest = f" (or {', '.join(others)})" if others and settings != "none" else ""
    return mapping_text(found, settings) + rest if found else ""


def usual_columns(names: Sequence[str], *wanted: str) -> dict[str, str]:
    """The wanted columns by the names that they usually have, as a mapping; empty if one is missing or none differs."""
    found: dict[str, str] = {}
    for one in wanted:
        near = next((alias for alias in ALIASES[one] if alias in names and alias not in found.values()), None)
        if near is None:
            return {}
        found[one] = near
    return _renamed(found)


def mapping_text(mapping: Mapping[str, str], settings: Settings) -> str:
    """How a mapping is written: in quotes as an override, beside the path of a set, or as options of a command."""
    if settings == "none":
        return f"rename {', '.join(f'{column} to {name}' for name, column in mapping.items())}"
    if settings == "command":
        return " ".join(f"--column {name}={column}" for name, column in mapping.items())
    pairs = ", ".join(f"{name}: {column}" for name, column in mapping.items())
    return f"columns: {{{pairs}}} beside its path" if settings == "set" else f"'{settings}.columns={{{pairs}}}'"


def _renamed(mapping: Mapping[str, str]) -> dict[str, str]:
    return {name: column for name, column in mapping.items() if name != column}


def _found(row: Columns, column: str) -> tuple[bool, Any]:
    if column in row:
        return True, row[column]
    outer, dot, inner = column.partition(".")
    value = row.get(outer) if dot else None
    return _found(value, inner) if isinstance(value, dict) else (False, None)
