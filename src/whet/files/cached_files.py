"""Files that were downloaded once: each is written atomically, with its checksum beside it."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from whet.errors import RunFailed

log = logging.getLogger(__name__)


def is_intact(path: Path) -> bool:
    """Whether the file is there and has its checksum; a damaged one is warned of."""
    if not path.exists():
        return False
    damage = _damage(path)
    if damage:
        log.warning("%s %s: downloading the data set again", path, damage)
    return damage is None


def store(path: Path, write: Callable[[BinaryIO], Mapping[str, Any]], *, what: str) -> None:
    """Writes a file by a function and then its checksum, each atomically; what the function returns is noted too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as file:
            about = write(file)
            file.seek(0)
            checksum = _sha256(file)
        with _replacing(_seal_of(path)) as file:
            file.write(json.dumps({"sha256": checksum, **about}).encode())
    except OSError as error:
        raise RunFailed(f"cannot write {what} to {path}: {error.strerror or error}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of another once it is complete."""
    with tempfile.NamedTemporaryFile("w+b", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            yield cast("BinaryIO", file)
        except BaseException:
            Path(file.name).unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _damage(path: Path) -> str | None:
    try:
        expected = json.loads(_seal_of(path).read_text("utf-8"))["sha256"]
        with path.open("rb") as file:
            found = _sha256(file)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "has no readable checksum"
    return None if found == expected else "has a wrong checksum"


def _sha256(file: BinaryIO) -> str:
    return hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
