"""manifest.json: sizes and checksums of the files in a directory (checkpoints, best and pulled models)."""

import hashlib
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

MANIFEST = "manifest.json"


class Sealed(NamedTuple):
    """The entry of a file."""

    size: int
    sha256: str


def list_files(directory: Path) -> dict[str, dict[str, Any]]:
    """The `files` of a manifest: every file below the directory, synced to disk."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): {"bytes": sync_file(path), "sha256": sha256(path)} for path in paths
    }


def checked_entries(content: Any) -> dict[str, Sealed]:
    """The files of a manifest; ValueError if it is invalid."""
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError("it lists no files")
    found = {}
    for name, entry in files.items():
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute():
            raise ValueError(f"it lists {name!r}, which is outside the directory")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
            raise ValueError(f"it lacks size or checksum of {name}")
        found[name] = Sealed(entry["bytes"], entry["sha256"])
    return found


def mismatch(path: Path, sealed: Sealed) -> str | None:
    """How a file differs from its entry, or None."""
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or device might never end
            return "is no regular file"
        if size != sealed.size:
            return f"has {size} bytes instead of {sealed.size}"
        return None if sha256(path) == sealed.sha256 else "has a wrong checksum"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> int:
    """Waits until a file is on disk; returns its size."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
