"""Parsing of untrusted replies: JSON within bounds, and text that is safe to print."""

import json
import re
from typing import Any

from whet.errors import escaped

LONGEST_MESSAGE = 300
LONGEST_VALUE = 60
MOST_DIGITS = 300  # of an integer: every such number fits into a float
SURROGATES = re.compile("[\ud800-\udfff]")


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8. Raises JSONDecodeError if it is not JSON, ValueError for any other problem."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from error
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("is JSON that is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"is not a JSON object but {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A JSON value for an error message: short, and without the contents of lists and objects."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 1] + "…")
    return json.dumps(value)[:LONGEST_VALUE]


def printable(text: str) -> str:
    """One line that is safe for a terminal: shortened, control characters and lone surrogates escaped."""
    line = " ".join(text.split())
    if len(line) > LONGEST_MESSAGE:
        line = line[: LONGEST_MESSAGE - 1] + "…"
    return escaped(line)


def whole_characters(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which JSON allows and UTF-8 files do not."""
    return SURROGATES.sub("\ufffd", text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"has {shown(name)} twice in one object")
        found[name] = value
    return found


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"has a number of {len(digits)} digits")
    return int(digits)
