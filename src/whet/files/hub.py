"""Data sets of the Hugging Face hub, downloaded with `datasets` and cached as one checksummed JSON-lines file each.

A cached data set is read without `datasets` and without a network.
"""

import gzip
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.files import home_directory
from whet.files.readers import plain_value
from whet.imports import optional_package

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
CACHE_VERSION = 1  # raise it when the file layout changes, so that older files are replaced
log = logging.getLogger(__name__)


def is_hub_name(name: str) -> bool:
    """Whether this can be a data set: owner/name or owner/name@revision."""
    return NAME.fullmatch(name) is not None


def cached_rows(name: str, *, subset: str = "", split: str = "train") -> Path:
    """The cached file with the rows of a data set, downloaded if it is absent or damaged."""
    key = hashlib.sha256(json.dumps([CACHE_VERSION, name, subset, split]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.-]+", "--", "-".join(part for part in (name, subset, split) if part))
    path = home_directory("data") / f"{readable}-{key}.jsonl.gz"
    if path.exists():
        damage = _damage(path)
        if damage is None:
            return path
        log.warning("%s %s: downloading the data set again", path, damage)
    try:
        _store(_downloaded(name, subset, split), path)
    except OSError as error:
        raise RunFailed(f"cannot write the data set {name} to {path}: {error.strerror or error}") from error
    return path


def _damage(path: Path) -> str | None:
    try:
        expected = json.loads(_seal_of(path).read_text("utf-8"))["sha256"]
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "has no readable checksum"
    return None if found == expected else "has a wrong checksum"


def _downloaded(name: str, subset: str, split: str) -> list[dict[str, Any]]:
    datasets = optional_package("datasets", f"{name} is not a file, and downloading it from the Hugging Face hub")
    repository, _, revision = name.partition("@")
    place: dict[str, Any] = {"revision": revision or None}
    try:
        if subset:
            known = datasets.get_dataset_config_names(repository, **place)
            # Some data sets have directories instead of configurations, e.g. Anthropic's helpful-base.
            place["name" if subset in known else "data_dir"] = subset
        return [dict(row) for row in datasets.load_dataset(repository, split=split, **place)]
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot download the data set {name} (subset {subset or 'none'}, split {split}): {reason}"
        ) from error


def _store(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Writes the rows and then their checksum, each atomically."""
    text = "".join(json.dumps(plain_value(row), ensure_ascii=False) + "\n" for row in rows)
    # mtime=0: the bytes depend on the rows alone, so two processes may write at once.
    packed = gzip.compress(text.encode("utf-8"), mtime=0)
    seal = {"sha256": hashlib.sha256(packed).hexdigest(), "rows": text.count("\n")}
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, data in ((path, packed), (_seal_of(path), json.dumps(seal).encode())):
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(target)


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
