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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

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


def cached_rows(name: str, *, subset: str = "", split: str = "train", limit: int | None = None) -> Path:
    """The cached file with the rows of a data set, downloaded if it is absent or damaged.

    With a `limit` only the first rows are downloaded, unless the whole data set is cached.
    """
    whole = _cache_path(name, subset, split)
    for path in (whole, _cache_path(name, subset, f"{split}[:{limit}]")) if limit is not None else (whole,):
        if path.exists():
            damage = _damage(path)
            if damage is None:
                return path
            log.warning("%s %s: downloading the data set again", path, damage)
    try:
        _store(_downloaded(name, subset, split, limit), path)
    except OSError as error:
        raise RunFailed(f"cannot write the data set {name} to {path}: {error.strerror or error}") from error
    return path


def _cache_path(name: str, subset: str, split: str) -> Path:
    key = hashlib.sha256(json.dumps([CACHE_VERSION, name, subset, split]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.-]+", "--", "-".join(part for part in (name, subset, split) if part))
    return home_directory("data") / f"{readable}-{key}.jsonl.gz"


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


def _downloaded(name: str, subset: str, split: str, limit: int | None) -> Iterator[dict[str, Any]]:
    """The rows one by one; all files are downloaded first unless there is a limit, which stops the download too."""
    datasets = optional_package("datasets", f"{name} is not a file, and downloading it from the Hugging Face hub")
    repository, _, revision = name.partition("@")
    place: dict[str, Any] = {"revision": revision or None}
    try:
        if subset:
            known = datasets.get_dataset_config_names(repository, **place)
            # Some data sets have directories instead of configurations, e.g. Anthropic's helpful-base.
            place["name" if subset in known else "data_dir"] = subset
        if limit is not None:
            place["streaming"] = True
        yield from map(dict, islice(datasets.load_dataset(repository, split=split, **place), limit))
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot download the data set {name} (subset {subset or 'none'}, split {split}): {reason}"
        ) from error


def _store(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Writes the rows one by one and then their checksum, each file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with _replacing(path) as file:
        # Without name and time, the bytes depend on the rows alone: two processes may write at once.
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            for row in rows:
                packed.write(json.dumps(plain_value(row), ensure_ascii=False).encode("utf-8") + b"\n")
                count += 1
        file.seek(0)
        seal = {"sha256": _sha256(file), "rows": count}
    with _replacing(_seal_of(path)) as file:
        file.write(json.dumps(seal).encode())


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


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")
