"""Checkpoints and the best model: directories written atomically, with checksums.

A directory is filled under a temporary name by the caller's `fill`, every file is synced and listed with its SHA-256 in
manifest.json, and only then it is renamed.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.manifests import MANIFEST, Sealed, checked_entries, list_files, mismatch, sync_file
from whet.runs.layout import BEST, CHECKPOINTS, STATE, by_step
from whet.runs.logs import bytes_below, reason, remove, sync_directory, temporary_beside, write_atomic

SEALED = (".safetensors", ".json")  # such files must be in the manifest
MARK = b'{"checkpoints": true}\n'
PREDECESSOR = ".old-"  # prefix of a directory while it is being replaced

Fill = Callable[[Path], None]


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    state: dict[str, Any]


def write_directory(target: Path, fill: Fill, name: str, content: Mapping[str, Any]) -> None:
    """Replaces `target` by a filled directory, with `content` as the JSON file `name` and a manifest."""
    temporary = temporary_beside(target)
    try:
        temporary.mkdir()
        fill(temporary)
        # Not strict JSON: a best score may be -inf.
        (temporary / name).write_text(json.dumps(content, indent=1))
        _seal(temporary)
        _place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def defect(directory: Path) -> str | None:
    """The first damaged file of the directory and its problem; None if every byte is as written."""
    try:
        files = _read_manifest(directory)
    except OSError as error:
        return f"{MANIFEST} cannot be read: {reason(error)}"
    except (ValueError, RecursionError):
        return f"{MANIFEST} is damaged"
    present = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name.endswith(SEALED))
    unlisted = [name for name in present if name not in files and name != MANIFEST]
    if unlisted:
        return f"{unlisted[0]} is not in {MANIFEST}"
    problems = ((name, mismatch(directory / name, sealed)) for name, sealed in files.items())
    return next((f"{name} {problem}" for name, problem in problems if problem is not None), None)


def newest_intact(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint without a defect; defects of newer ones are reported."""
    for step, path in reversed(by_step(directory).items()):
        wrong = defect(path) or (None if (path / STATE).is_file() else f"{STATE} is missing")
        if wrong is None:
            return Checkpoint(path=path, step=step, state=json.loads((path / STATE).read_bytes()))
        report(f"checkpoint {path} is corrupt: {wrong}")
    return None


def mark(directory: Path, file: Path) -> None:
    """Records in `file` whether the directory has checkpoints, so that their loss is noticed."""
    if not by_step(directory):
        file.unlink(missing_ok=True)
    elif not file.exists():
        write_atomic(file, MARK)


def last_good(directory: Path) -> str:
    """The end of an error message of a failed run."""
    checkpoint = newest_intact(directory, lambda _: None)
    return f"the last good checkpoint is {checkpoint.path}" if checkpoint else "there is no checkpoint yet"


def keep_newest(directory: Path, count: int) -> None:
    paths = list(by_step(directory).values())
    for path in paths[: max(0, len(paths) - count)]:
        discard(path)


def model_bytes(run: Path) -> int:
    """What the checkpoints and the best model of a run take on disk."""
    return sum(bytes_below(run / folder) for folder in (CHECKPOINTS, BEST))


def discard(path: Path) -> None:
    """Deletes a directory; if killed half-way, the rest has a temporary name."""
    doomed = temporary_beside(path)
    path.rename(doomed)
    remove(doomed)  # possibly a file or link that a user put there


def recover(parent: Path) -> None:
    """Completes an interrupted replacement: the predecessor is restored unless its successor exists."""
    for predecessor in parent.glob(f"{PREDECESSOR}*"):
        target = parent / predecessor.name.removeprefix(PREDECESSOR)
        if target.exists():
            discard(predecessor)
        else:
            predecessor.rename(target)


def current(target: Path) -> Path | None:
    """The directory, or its predecessor while it is being replaced."""
    # Checked again at the end: the replacement may complete between the first two checks.
    candidates = (target, target.with_name(PREDECESSOR + target.name), target)
    return next((path for path in candidates if path.is_dir()), None)


def _seal(directory: Path) -> None:
    """Writes the manifest after the listed files are on disk."""
    listed, manifest = list_files(directory), directory / MANIFEST
    manifest.write_bytes(_manifest_bytes(listed))
    sync_file(manifest)
    for inner in (path for path in directory.rglob("*") if path.is_dir()):
        sync_directory(inner)
    sync_directory(directory)


def _place(temporary: Path, target: Path) -> None:
    recover(target.parent)
    predecessor = target.with_name(PREDECESSOR + target.name)
    try:
        if os.path.lexists(target):
            target.rename(predecessor)
        temporary.rename(target)
        sync_directory(target.parent)
    finally:
        recover(target.parent)


def _manifest_bytes(listed: Mapping[str, Mapping[str, Any]]) -> bytes:
    return json.dumps({"files": listed}, indent=1, sort_keys=True).encode() + b"\n"


def _read_manifest(directory: Path) -> dict[str, Sealed]:
    data = (directory / MANIFEST).read_bytes()
    content = json.loads(data)
    found = checked_entries(content)
    if _manifest_bytes(content["files"]) != data:  # to notice any flipped bit
        raise ValueError(f"{MANIFEST} is not as written")
    return found
