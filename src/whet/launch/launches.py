"""What was launched: a JSON file each below $WHET_HOME/launches, beside the file that was given to the tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from whet.errors import UserError, nearest
from whet.files import home_directory
from whet.launch.tool import Launch
from whet.runs.logs import reason, write_atomic

FOLDER, ENDING = "launches", ".json"


def folder() -> Path:
    """Where launches are recorded; made if it is absent."""
    place = home_directory(FOLDER)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot keep launches in {place}: {reason(error)}; $WHET_HOME names another place") from error
    return place


def file_of(name: str, ending: str) -> Path:
    """The file of a launch that has this ending."""
    return folder() / f"{name}{ending}"


def save(launch: Launch) -> None:
    write_record(file_of(launch.name, ENDING), asdict(launch))


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    """Replaces a JSON file as a whole."""
    write_file(path, json.dumps(values, indent=2) + "\n")


def write_file(path: Path, text: str) -> None:
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; $WHET_HOME names another place") from error


def find(name: str) -> Launch:
    """The launch of this name."""
    found = find_any(name)
    if found is None:
        known = sorted(launch.name for launch in every())
        told = f"there are {', '.join(known)}" if known else "there are none"
        raise UserError(f"no launch {name!r}{nearest(name, known)}: {told} (whet launch list)")
    return found


def find_any(name: str) -> Launch | None:
    """The launch of this name, or None."""
    return next((launch for launch in every() if launch.name == name), None)


def every() -> list[Launch]:
    """All launches, the newest first."""
    found = [_read(path) for path in folder().glob(f"*{ENDING}")]
    return sorted(found, key=lambda launch: launch.started, reverse=True)


def forget(launch: Launch) -> None:
    """Removes the record and what was written for the tool; the run stays."""
    for path in (Path(launch.file), file_of(launch.name, ENDING)):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Launch:
    try:
        values = json.loads(path.read_text("utf-8"))
        known = {field.name for field in fields(Launch)}
        if not isinstance(values, dict) or not {"name", "tool", "id"} <= values.keys():
            raise ValueError("it is no record of a launch")
        return Launch(**{name: value for name, value in values.items() if name in known})
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {path} ({error}): remove it; the run that it names is not touched") from error
