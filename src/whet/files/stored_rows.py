"""Rows by the name of their source: a file, a folder of files, an http(s) address, or a data set of the hub."""

import re
from collections.abc import Iterator
from pathlib import Path

from whet.errors import UserError
from whet.files.hub import cached_rows, is_hub_name
from whet.files.readers import ROWS, Raw, is_file_name, is_rows_file, read_file
from whet.files.web import cached_download, is_address

SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")  # words that begin the names of split files


def stored_rows(
    path: str, *, split: str = "train", subset: str = "", limit: int | None = None
) -> Iterator[tuple[str, Raw]]:
    """Every row with its "file:line"; rows of the hub are named by the data set.

    With a `limit`, no more rows are downloaded from the hub; a file may yield more.
    """
    is_folder = Path(path).expanduser().is_dir()
    for file in row_files(path, split=split, subset=subset, limit=limit):
        for raw in read_file(file):
            number = f" (row {raw.row})" if raw.row else ""
            yield f"{file if is_folder else path}:{raw.line}{number}", raw


def row_files(path: str, *, split: str = "train", subset: str = "", limit: int | None = None) -> list[Path]:
    """The files that hold the rows, in order; what is not on this machine is downloaded if it is not cached."""
    if is_address(path):
        return [cached_download(path)]
    place = Path(path).expanduser()
    if place.is_dir():
        return _of_folder(place, path, split)
    if place.exists() or is_file_name(path):
        return [place]
    if is_hub_name(path):
        return [cached_rows(path, subset=subset, split=split, limit=limit)]
    raise UserError(f"{path}: no such file, and not the name of a data set (owner/name)")


def _of_folder(folder: Path, named: str, split: str) -> list[Path]:
    """rows.jsonl, which a run makes; else all files of rows, or those of the split if they are named after splits."""
    if (folder / ROWS).is_file():
        return [folder / ROWS]
    found = sorted(
        file for file in folder.iterdir() if is_rows_file(file.name) and file.is_file() and file.name[0] != "."
    )
    if not found:
        raise UserError(f"{named} is a folder without files of rows (.jsonl, .json, .csv, .parquet …): name another")
    by_split = {file: _split_of(file) for file in found}
    chosen = [file for file in found if by_split[file] == split]
    others = sorted({name for name in by_split.values() if name})
    if not chosen and others:
        raise UserError(f"{named} has no files of the split {split!r}, but of {', '.join(others)}: set split")
    return chosen or found


def _split_of(file: Path) -> str:
    """The split that a file is named after, as in train-00000-of-00002.parquet or test.jsonl; else empty."""
    found = re.match(rf"({'|'.join(SPLITS)})(?![a-z])", file.name.lower())
    return found[1] if found else ""
