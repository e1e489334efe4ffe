"""Directories that are whole or absent: checkpoints, and the best model.

A directory is filled under a temporary name, every file synced and listed with its SHA-256 in manifest.json, and only
then renamed. Knows nothing about models: the caller's `fill` writes the files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.manifests import MANIFEST, Sealed, checked_entries, list_files, mismatch, sync_file
from whet.runs.layout import STATE, by_step
from whet.runs.logs import reason, remove, sync_directory, temporary_beside, write_atomic

SEALED = (".safetensors", ".json")  # no file that ends so may lie in a directory without being in its manifest
MARK = b'{"checkpoints": true}\n'
PREDECESSOR = ".old-"  # how the name of a directory begins while its successor takes its place

Fill = Callable[[Path], None]


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint."""

    path: Path
    step: int
    state: dict[str, Any]


def write_directory(target: Path, fill: Fill, name: str, content: Mapping[str, Any]) -> None:
    """Puts a filled directory, with `content` as the JSON file `name` and a manifest, in place of `target`."""
    temporary = temporary_beside(target)
    try:
        temporary.mkdir()
        fill(temporary)
        # Not strict JSON: a best score of -inf must come back as -inf.
        (temporary / name).write_text(json.dumps(content, indent=1))
        _seal(temporary)
        _place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def defect(directory: Path) -> str | None:
    """What is wrong with the directory, naming the file, or None when every byte is as it was written."""
    try:
        files = _read_manifest(directory)
    except OSError as error:
        return f"{MANIFEST} cannot be read: {reason(error)}"
    except (ValueError, RecursionError):
        return f"{MANIFEST} is damaged"
    lying = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name.endswith(SEALED))
    unlisted = [name for name in lying if name not in files and name != MANIFEST]
    if unlisted:
        return f"{unlisted[0]} is not in {MANIFEST}"
    problems = ((name, mismatch(directory / name, sealed)) for name, sealed in files.items())
    return next((f"{name} {problem}" for name, problem in problems if problem is not None), None)


def newest_intact(directory: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint without a defect; each newer one is reported with its defect."""
    for step, path in reversed(by_step(directory).items()):
        wrong = defect(path) or (None if (path / STATE).is_file() else f"{STATE} is missing")
        if wrong is None:
            return Checkpoint(path=path, step=step, state=json.loads((path / STATE).read_bytes()))
        report(f"checkpoint {path} is corrupt: {wrong}")
    return None


def mark(directory: Path, file: Path) -> None:
    """Leaves on the disk that there are checkpoints in a directory, or that there are none yet."""
    if not by_step(directory):
        file.unlink(missing_ok=True)
    elif not file.exists():
        write_atomic(file, MARK)


def last_good(directory: Path) -> str:
    """What a person wants to know when a run breaks."""
    checkpoint = newest_intact(directory, lambda _: None)
    return f"the last good checkpoint is {checkpoint.path}" if checkpoint else "there is no checkpoint yet"


def keep_newest(directory: Path, count: int) -> None:
    """Deletes all checkpoints but the newest `count`."""
    for path in list(by_step(directory).values())[:-count]:
        discard(path)


def discard(path: Path) -> None:
    """Deletes a directory; killed half-way, what is left has a temporary name and is never taken for a whole one."""
    doomed = temporary_beside(path)
    path.rename(doomed)
    remove(doomed)  # which may be no directory: somebody put a file or a link in its place


def recover(parent: Path) -> None:
    """Ends a replacement that was cut short: a predecessor comes back unless its successor stands."""
    for predecessor in parent.glob(f"{PREDECESSOR}*"):
        target = parent / predecessor.name.removeprefix(PREDECESSOR)
        if target.exists():
            discard(predecessor)
        else:
            predecessor.rename(target)


def standing(target: Path) -> Path | None:
    """The directory, or its predecessor in the instant in which it is being replaced."""
    # The last look is for a replacement that ended between the first two.
    candidates = (target, target.with_name(PREDECESSOR + target.name), target)
    return next((path for path in candidates if path.is_dir()), None)


def _seal(directory: Path) -> None:
    """Writes the manifest when everything that it lists is on the disk."""
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
    if _manifest_bytes(content["files"]) != data:  # so that no flipped bit goes unseen, not even one between the values
        raise ValueError(f"{MANIFEST} is not as it was written")
    return found
