"""Files that were downloaded once: each is written atomically, with its checksum beside it."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def store(path: Path, data: bytes, *, about: Mapping[str, Any], what: str) -> None:
    """Writes the data and then its checksum, each atomically."""
    seal = {"sha256": hashlib.sha256(data).hexdigest(), **about}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for target, content in ((path, data), (_seal_of(path), json.dumps(seal).encode())):
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(target)
    except OSError as error:
        raise RunFailed(f"cannot write {what} to {path}: {error.strerror or error}") from error


def _damage(path: Path) -> str | None:
    try:
        expected = json.loads(_seal_of(path).read_text("utf-8"))["sha256"]
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "has no readable checksum"
    return None if found == expected else "has a wrong checksum"


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
