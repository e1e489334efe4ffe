"""The directory of pulled models. A model is built aside, checksummed last, then renamed: complete or absent."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.files import home_directory, read_object
from whet.manifests import MANIFEST, checked_entries, list_files, mismatch, sync_file
from whet.models.storage.checksums import read_files

FORMAT = 1  # increased when a conversion changes, so that cached results are rebuilt
ABANDONED_SECONDS = 24 * 3600  # a build directory this old is left over from a killed process


def models_directory(cache: Path | None = None) -> Path:
    """The directory of pulled models: `cache`, else $WHET_HOME/models, else ~/.cache/whet/models."""
    return home_directory("models") if cache is None else cache


def cached_names(models: Path) -> list[str]:
    """The names of the models with a manifest, sorted."""
    found = [*models.glob(f"*/{MANIFEST}"), *models.glob(f"*/*/{MANIFEST}")]
    names = [path.parent.relative_to(models) for path in found]
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def damage(directory: Path, *, contents: bool = True) -> str | None:
    """The problem with a cached model, or None; without `contents` only names and sizes are compared."""
    if not os.path.lexists(directory / MANIFEST):
        return f"{MANIFEST} is missing"
    try:
        manifest = read_object(directory / MANIFEST)
        entries = checked_entries(manifest)
    except (ValueError, UserError):
        return f"{MANIFEST} is not readable"
    if manifest.get("format") != FORMAT:
        return f"{MANIFEST} is of another format"
    unlisted = [path.name for path in read_files(directory) if path.name not in entries]
    if unlisted:
        return f"{unlisted[0]} is not in {MANIFEST}"
    for name, sealed in entries.items():
        path = directory / name
        if contents or not path.is_file() or path.stat().st_size != sealed.size:
            problem = mismatch(path, sealed)
            if problem is not None:
                return f"{name} {problem}"
    return None


@contextmanager
def building(
    target: Path, *, origin: dict[str, Any], kept_after: tuple[type[BaseException], ...] = ()
) -> Iterator[tuple[Path, Path]]:
    """Yields (model, scratch) directories to fill; after success `model` is renamed to `target`.

    After an exception of `kept_after` the files of `model` are kept for the next build of the same target, which finds
    them there.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    unfinished = target.parent / f".{target.name}-unfinished"
    try:
        model, scratch = aside / "model", aside / "scratch"
        with suppress(OSError):  # none is there, or another process took it
            unfinished.rename(model)
        model.mkdir(exist_ok=True)
        scratch.mkdir()
        try:
            yield model, scratch
        except kept_after:
            with suppress(OSError):  # another process left its own
                model.rename(unfinished)
            raise
        content = {"format": FORMAT, **origin, "files": list_files(model)}  # after every file is synced to disk
        (model / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        sync_file(model / MANIFEST)
        if target.exists():
            target.rename(aside / "replaced")
        try:
            model.rename(target)
        except OSError:
            if damage(target) is not None:  # otherwise another process was faster, and its copy is as good
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # not empty: it holds models
            target.parent.rmdir()


def _remove_abandoned(target: Path) -> None:
    for path in target.parent.glob(f".{target.name}-*"):
        if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
