"""Verification of model directories with a manifest.json: best_model and checkpoints of runs, and pulled models.

Loading from one of them either reads the files that were written or fails with the name of the changed file. A
directory without manifest.json is not checked.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from whet.errors import UserError
from whet.files import read_json
from whet.manifests import MANIFEST, Sealed, checked_entries, mismatch

T = TypeVar("T")

MADE_BY_A_RUN = ("best.json", "state.json")  # next to the manifest of a best model, and of a checkpoint
IN_A_CHECKPOINT = "model"  # the model directory in a checkpoint, whose manifest is one level up
WEIGHTS = ".safetensors"
READ = (WEIGHTS, ".json", ".jinja", ".model", ".tiktoken", "merges.txt", "vocab.txt")  # endings of files to load
REPAIR = f"copy the directory again, or remove {MANIFEST} if you changed it yourself"


def read_steadily(directory: Path, read: Callable[[Path], T]) -> T:
    """`read(directory)`, repeated once if the directory was replaced meanwhile, as by a better best_model."""
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
    except OSError:  # absent between two renames
        return None
    return status.st_dev, status.st_ino


def refuse_damage(directory: Path, *, with_weights: bool = True) -> None:
    """Raises a UserError that names the first file that differs from the directory's manifest.

    `with_weights=False` skips the weights, for callers that do not read them.
    """
    root = directory = directory.resolve()
    if directory.name == IN_A_CHECKPOINT and (directory.parent / MADE_BY_A_RUN[1]).is_file():
        root = directory.parent
    listed = sealed_files(root)
    if listed is None:
        return
    prefix = "" if root == directory else f"{directory.name}/"
    for path in read_files(directory):
        if prefix + path.name not in listed:
            raise UserError(
                f"{path} is not in {root / MANIFEST}, so it was added later or the list is damaged: {REPAIR}"
            )
    for name, sealed in listed.items():
        if name.startswith(prefix) and (with_weights or not name.endswith(WEIGHTS)):
            problem = mismatch(root / name, sealed)
            if problem is not None:
                raise UserError(f"{root / name} {problem}, according to {root / MANIFEST}: {REPAIR}")


def sealed_files(root: Path) -> dict[str, Sealed] | None:
    """File → size and checksum of the manifest; None without one, or if it is another program's."""
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


def read_files(directory: Path) -> list[Path]:
    """The files of a directory that model and tokeniser loaders may read, sorted."""
    entries = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in entries if path.name.endswith(READ) and path.name != MANIFEST and path.is_file())
