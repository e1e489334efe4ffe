"""The lines that were added to a log since it was last read; damaged lines are left out and told."""

import json
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.runs.logs import LARGEST_STEP, reason

MOST = 32_000_000  # bytes that one call reads
KEPT = 5  # problems that are told
LARGEST = sys.float_info.max


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Rows after a cursor, and the cursor after them."""

    rows: tuple[dict[str, Any], ...]
    cursor: str
    starts_again: bool  # the file was replaced since the cursor: these are its first rows
    has_more: bool  # not all new lines were read
    problems: tuple[str, ...]


def read_tail(path: Path, cursor: str = "", most: int = MOST) -> Tail:
    """Rows with a whole `step` that follow the cursor, without values that are no finite numbers.

    A run that is resumed may replace its log by a shorter one: the cursor holds the file's number.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return _nothing(cursor, f"{path.name} is not a regular file")
        file, offset, line = _read_cursor(cursor)
        again = file != status.st_ino or offset > status.st_size
        offset, line = (0, 0) if again else (offset, line)
        with path.open("rb") as opened:
            opened.seek(offset)
            data = opened.read(most)
    except FileNotFoundError:
        return _nothing(cursor)
    except OSError as error:
        return _nothing(cursor, f"{path.name} cannot be read: {reason(error)}")
    whole = data[: data.rfind(b"\n") + 1]
    rows, problems = [], []
    for number, text in enumerate(whole.split(b"\n")[:-1], start=line + 1):
        found = _row(text)
        if isinstance(found, str):
            problems.append(f"{path.name}, line {number}: {found}; the line is left out")
        else:
            rows.append(found)
    if not whole and len(data) == most:
        problems.append(f"{path.name}: a line is longer than {most:,} bytes; nothing after it is read")
    lines = line + whole.count(b"\n")
    return Tail(
        rows=tuple(rows),
        cursor=f"{status.st_ino}-{offset + len(whole)}-{lines}",
        starts_again=again and bool(cursor),
        has_more=bool(whole) and len(data) == most,
        problems=tuple(problems[:KEPT]) + ((f"… and {len(problems) - KEPT} more",) if len(problems) > KEPT else ()),
    )


def _nothing(cursor: str, *problems: str) -> Tail:
    return Tail(rows=(), cursor=cursor, starts_again=False, has_more=False, problems=problems)


def _read_cursor(cursor: str) -> tuple[int, int, int]:
    """File number, offset and lines; of a cursor that is none, those that no file has."""
    parts = cursor.split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return -1, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2])


def _row(text: bytes) -> dict[str, Any] | str:
    """The step and the finite numbers of a line, or what is wrong with it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON ({reason(error)[:200]})"
    step = found.get("step") if isinstance(found, dict) else None
    if type(step) is not int or not 0 <= step <= LARGEST_STEP:
        return "no step"
    # Comparing leaves out NaN too, and, unlike isfinite, takes whole numbers of any size.
    return {
        name: value for name, value in found.items() if type(value) in (int, float) and -LARGEST <= value <= LARGEST
    }
