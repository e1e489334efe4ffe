"""Rollouts as rules may read them: a row with a value of another type is empty, and that is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from whet.doctor.history import Row

LARGEST = sys.float_info.max


def rows_as_read(rows: Iterable[Row], name: str, damage: dict[str, None]) -> list[Row]:
    """Of each row what rules read, which leaves out most of the memory; rows keep their places.

    `name` is told, with the field, in `damage`.
    """
    return [_as_read(row, name, damage) for row in rows]


def _as_read(row: Row, name: str, damage: dict[str, None]) -> Row:
    kept = {field: row[field] for field in FIELDS if row.get(field) is not None}
    wrong = next((field for field, value in kept.items() if not FIELDS[field](value)), "")
    if not wrong and "mask" in kept and len(kept.get("tokens", ())) != len(kept["mask"]):
        wrong = "mask"
    if not wrong and "pieces" in kept and len(kept["pieces"]) != sum(kept.get("mask", ())):
        wrong = "pieces"
    if not wrong:
        return kept
    damage[f"{name}: rows whose {wrong} is not what whet writes are left out"] = None
    return {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and set(map(type, value)) <= {kind}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turn, dict) and _is_count(turn.get("tokens")) for turn in value)


# What rules read of a row, and whether a value may stand there; null is none.
FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "id": lambda _: True,  # like the prompt, read as text whatever it is
    "prompt": lambda _: True,
    "text": _is_text,
    "tokens": _list_of(int),
    "mask": _list_of(bool),
    "pieces": _list_of(str),
    "finish": _is_text,
    "reward": _is_number,
    "parts": lambda value: isinstance(value, dict),
    "advantage": _is_number,
    "turns": _are_turns,
}
