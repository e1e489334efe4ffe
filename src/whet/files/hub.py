"""Data sets of the Hugging Face hub, downloaded with `datasets` and cached as one checksummed JSON-lines file each.

A cached data set is read without `datasets` and without a network.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def cached_rows(name: str, *, subset: str = "", split: str = "train") -> Path:
    """The cached file with the rows of a data set, downloaded if it is absent or damaged."""
    key = hashlib.sha256(json.dumps([CACHE_VERSION, name, subset, split]).encode()).hexdigest()[:16]
    readable = re.sub(r"[^\w.-]+", "--", "-".join(part for part in (name, subset, split) if part))
    path = home_directory("data") / f"{readable}-{key}.jsonl.gz"
    if not is_intact(path):
        data, rows = _packed(_downloaded(name, subset, split))
        store(path, data, about={"rows": rows}, what=f"the data set {name}")
    return path


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


def _packed(rows: Iterable[dict[str, Any]]) -> tuple[bytes, int]:
    """The rows as compressed JSON lines, and their number."""
    text = "".join(json.dumps(plain_value(row), ensure_ascii=False) + "\n" for row in rows)
    # mtime=0: the bytes depend on the rows alone, so two processes may write at once.
    return gzip.compress(text.encode("utf-8"), mtime=0), text.count("\n")
