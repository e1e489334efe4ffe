"""Data sets of the Hugging Face hub, downloaded with `datasets` and cached as one checksummed JSON-lines file each.

A cached data set is read without `datasets` and without a network.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from whet.errors import UserError
from whet.files import home_directory
from whet.files.cached_files import is_intact, store
from whet.files.readers import plain_value
from whet.imports import optional_package

NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")
CACHE_VERSION = 1  # raise it when the file layout changes, so that older files are replaced


def is_hub_name(name: str) -> bool:
    """Whether this can be a data set: owner/name or owner/name@revision."""
    return NAME.fullmatch(name) is not None


def cached_rows(name: str, *, subset: str = "", split: str = "train", limit: int | None = None) -> Path:
    """The cached file with the rows of a data set, downloaded if it is absent or damaged.

    With a `limit` only the first rows are downloaded, unless the whole data set is cached.
    """
    path = _cache_path(name, subset, split)
    if limit is not None and not is_intact(path):
        path = _cache_path(name, subset, f"{split}[:{limit}]")
    if not is_intact(path):
        rows = _downloaded(name, subset, split, limit)
        store(path, lambda file: {"rows": _write(rows, file)}, what=f"the data set {name}")
    return path


def _cache_path(name: str, subset: str, split: str) -> Path:
    key = hashlib.sha256(json.dumps([CACHE_VERSION, name, subset, split]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.-]+", "--", "-".join(part for part in (name, subset, split) if part))
    return home_directory("data") / f"{readable}-{key}.jsonl.gz"


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


def _write(rows: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    """Writes the rows as compressed JSON lines; returns their number."""
    count = 0
    # Without name and time, the bytes depend on the rows alone: two processes may write at once.
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        for row in rows:
            packed.write(json.dumps(plain_value(row), ensure_ascii=False).encode("utf-8") + b"\n")
            count += 1
    return count
