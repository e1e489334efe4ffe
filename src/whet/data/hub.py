"""Data sets of the Hugging Face hub, through `datasets`, kept as one checksummed file of JSON lines each.

Once a data set is here it is read from its file: without `datasets`, without a network, and with the same rows.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.files import home_directory

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
MADE_BY = 1  # raised when the file is written differently, so that older ones are made again
log = logging.getLogger(__name__)


def is_hub_name(name: str) -> bool:
    """Whether this can be the name of a data set: owner/name, with @revision or without."""
    return NAME.fullmatch(name) is not None


def data_directory() -> Path:
    """Where fetched data sets live: $WHET_HOME/data, else ~/.cache/whet/data."""
    return home_directory("data")


def cached_rows(name: str, *, subset: str = "", split: str = "train") -> Path:
    """The file with the rows of a data set: the one that is here and whole, or one that is fetched now."""
    key = hashlib.sha256(json.dumps([MADE_BY, name, subset, split]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.-]+", "--", "-".join(part for part in (name, subset, split) if part))
    path = data_directory() / f"{readable}-{key}.jsonl.gz"
    damage = _damage(path)
    if damage == "":
        return path
    if damage is not None:
        log.warning("%s %s: the data set is fetched again", path, damage)
    try:
        _keep(_fetched(name, subset, split), path)
    except OSError as error:
        raise RunFailed(f"cannot keep the data set {name} as {path}: {error.strerror or error}") from error
    return path


def _damage(path: Path) -> str | None:
    """What is wrong with a kept file: nothing (""), or that there is none (None)."""
    if not path.exists():
        return None
    try:
        expected = json.loads(_seal_of(path).read_text("utf-8"))["sha256"]
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "has no readable checksum"
    return "" if found == expected else "has a wrong checksum"


def _fetched(name: str, subset: str, split: str) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{name} is no file, and fetching it from the Hugging Face hub needs: pip install 'whet[datasets]'"
        ) from error
    repository, _, revision = name.partition("@")
    place: dict[str, Any] = {"revision": revision or None}
    try:
        if subset:
            known = datasets.get_dataset_config_names(repository, **place)
            # Some data sets have no configurations but directories, as Anthropic's: helpful-base, harmless-base.
            place["name" if subset in known else "data_dir"] = subset
        return [dict(row) for row in datasets.load_dataset(repository, split=split, **place)]
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot fetch the data set {name} (subset {subset or 'none'}, split {split}): {reason}"
        ) from error


def _keep(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Puts the rows and then their checksum in place, each whole."""
    text = "".join(json.dumps(_plain(row), ensure_ascii=False, default=str) + "\n" for row in rows)
    # No time in the header: the bytes depend on the rows alone, so two processes that write at once do no harm.
    packed = gzip.compress(text.encode("utf-8"), mtime=0)
    seal = {"sha256": hashlib.sha256(packed).hexdigest(), "rows": text.count("\n")}
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, data in ((path, packed), (_seal_of(path), json.dumps(seal).encode())):
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(target)


def _plain(value: Any) -> Any:
    """The value with null for numbers that JSON has not: tables write a missing number as NaN."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
