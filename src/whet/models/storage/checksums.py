"""Model directories that list their files with checksums: best_model and checkpoints of runs, and pulled models.

Whoever loads from one of them reads what was written there, or is told which file is another one. A directory without
manifest.json is a plain model of somebody else's, and there is nothing to compare.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from whet.errors import UserError
from whet.files import read_json

T = TypeVar("T")

MANIFEST = "manifest.json"
MADE_BY_A_RUN = ("best.json", "state.json")  # beside the manifest of a best model, and of a checkpoint
IN_A_CHECKPOINT = "model"  # its model directory; the manifest is the checkpoint's
WEIGHTS = ".safetensors"
READ = (WEIGHTS, ".json", ".jinja", ".model", ".tiktoken", "merges.txt", "vocab.txt")  # what loaders read ends so
REPAIR = f"copy the directory again, or remove {MANIFEST} if you changed it yourself"


class Sealed(NamedTuple):
    """What a manifest says of a file."""

    size: int
    sha256: str


def read_steadily(directory: Path, read: Callable[[Path], T]) -> T:
    """What `read` makes of a directory; once more if another took its place meanwhile, as a better best_model does."""
    before = _identity(directory)
    try:
        found = read(directory)
    except UserError:
        if _identity(directory) == before:
            raise
    else:
        if _identity(directory) == before:
            return found
    return read(directory)


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:  # between two renames there is none
        return None
    return status.st_dev, status.st_ino


def refuse_damage(directory: Path, *, with_weights: bool = True) -> None:
    """Raises a UserError that names the first file which is not as the directory's manifest says.

    Without weights these are left out, for those who do not read them.
    """
    root = directory = directory.resolve()  # by whatever name it is called
    if directory.name == IN_A_CHECKPOINT and (directory.parent / MADE_BY_A_RUN[1]).is_file():
        root = directory.parent
    listed = sealed_files(root)
    if listed is None:
        return
    prefix = "" if root == directory else f"{directory.name}/"
    for path in read_files(directory):
        if prefix + path.name not in listed:
            raise UserError(f"{path} is not in {root / MANIFEST}, so it came later or the list is damaged: {REPAIR}")
    for name, sealed in listed.items():
        if name.startswith(prefix) and (with_weights or not name.endswith(WEIGHTS)):
            problem = mismatch(root / name, sealed)
            if problem is not None:
                raise UserError(f"{root / name} {problem}, according to {root / MANIFEST}: {REPAIR}")


def sealed_files(root: Path) -> dict[str, Sealed] | None:
    """File → size and checksum, as the manifest lists them; None where there is none, or another program's."""
    manifest = root / MANIFEST
    if not os.path.lexists(manifest):
        return None
    content = read_json(manifest, repair=REPAIR)
    is_ours = any((root / name).is_file() for name in MADE_BY_A_RUN)
    if not is_ours and not (isinstance(content, dict) and isinstance(content.get("files"), dict)):
        return None
    try:
        return checked_entries(content)
    except ValueError as error:
        raise UserError(f"{manifest} is damaged ({error}): {REPAIR}") from error


def checked_entries(content: Any) -> dict[str, Sealed]:
    """The files that a manifest lists; a ValueError says why it is none."""
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or not files:
        raise ValueError("it lists no files")
    found = {}
    for name, entry in files.items():
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or PurePosixPath(name).is_absolute():
            raise ValueError(f"it lists {name!r}, which is not inside of the directory")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
            raise ValueError(f"it does not say size and checksum of {name}")
        found[name] = Sealed(entry["bytes"], entry["sha256"])
    return found


def read_files(directory: Path) -> list[Path]:
    """The files of a directory that loaders of models and tokenisers may read, sorted."""
    entries = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in entries if path.name.endswith(READ) and path.name != MANIFEST and path.is_file())


def mismatch(path: Path, sealed: Sealed) -> str | None:
    """How a file differs from what was written there, or None."""
    try:
        status = path.stat()
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):  # a pipe or a device would be read without end
            return "is no regular file"
        if size != sealed.size:
            return f"has {size} bytes instead of {sealed.size}"
        return None if sha256(path) == sealed.sha256 else "has a wrong checksum"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def sha256(path: Path) -> str:
    """The hexadecimal checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
