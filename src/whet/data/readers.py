"""Files of rows → their rows one by one, each with its line. A broken row is returned with its problem, to be counted.

A file that cannot be read at all (absent, truncated archive, unterminated JSON) raises.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet import files
from whet.errors import UserError

CELL_LIMIT = 2**31 - 1  # characters per CSV cell; Python's default is shorter than many completions
SPACE = " \t\r\n"

ROWS = "rows.jsonl"  # read where a directory is named


@dataclass(frozen=True, slots=True)
class Raw:
    """One row of a file, before parsing."""

    line: int  # the first line; the row number in parquet
    columns: dict[str, Any]
    problem: str = ""  # why it cannot be read, with file and line; else empty


def read_file(path: Path) -> Iterator[Raw]:
    """The rows of a .jsonl, .json, .csv, .tsv (each also .gz or .xz) or .parquet file."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
    suffix = Path(name).suffix
    if suffix not in READERS:
        raise UserError(f"{path}: rows are read from {', '.join(READERS)} (all but .parquet also as .gz or .xz)")
    return READERS[suffix](path)


def is_file_name(name: str) -> bool:
    """Whether this names a file rather than a data set on the hub."""
    return Path(name.lower().removesuffix(".gz").removesuffix(".xz")).suffix in READERS or name.startswith((".", "/"))


def _json_lines(path: Path) -> Iterator[Raw]:
    for number, line in files.lines(path):
        try:
            yield Raw(number, files.json_object(line, f"{path}:{number}"))
        except UserError as error:
            yield Raw(number, {}, str(error))


def _json(path: Path) -> Iterator[Raw]:
    """One list of objects, or one object per line if the file does not start with a bracket."""
    text = _text(path)
    return _json_array(path, text) if text.lstrip(SPACE).startswith("[") else _json_lines(path)


def _json_array(path: Path, text: str) -> Iterator[Raw]:
    """Decodes a JSON list element by element, to know the line of each."""
    decoder = json.JSONDecoder()
    place = _after_space(text, text.index("[") + 1)
    line, counted = 1, 0
    while text[place : place + 1] != "]":
        line, counted = line + text.count("\n", counted, place), place
        where = f"{path}:{line}"
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is not JSON: {error}") from error
        try:
            yield Raw(line, files.checked_object(value, where))
        except UserError as error:
            yield Raw(line, {}, str(error))
        place = _after_space(text, end)
        if text[place : place + 1] not in (",", "]"):
            raise UserError(f"{path}:{line + text.count(chr(10), counted, place)} is not JSON: no , or ] after a row")
        if text[place] == ",":
            place = _after_space(text, place + 1)
    if text[place + 1 :].strip(SPACE):
        raise UserError(f"{path}: text after the list of rows: one file holds one list")


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1] and text[place] in SPACE:
        place += 1
    return place


def _cells(path: Path, delimiter: str) -> Iterator[Raw]:
    csv.field_size_limit(CELL_LIMIT)
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) != len(header) or not all(header):
            raise UserError(f"{path}:1 must name every column once (it names: {', '.join(header)})")
        line = reader.line_num + 1
        for cells in reader:
            if cells:
                yield _cells_row(header, cells, line, f"{path}:{line}")
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} is not CSV: {error}") from error


def _cells_row(header: list[str], cells: list[str], line: int, where: str) -> Raw:
    if len(cells) != len(header):
        return Raw(line, {}, f"{where} has {len(cells)} cells, the header has {len(header)}")
    try:
        return Raw(line, files.checked_object(dict(zip(header, cells, strict=True)), where))
    except UserError as error:
        return Raw(line, {}, str(error))


def _parquet(path: Path) -> Iterator[Raw]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{path}: reading parquet needs pyarrow: pip install 'whet[datasets]'") from error
    try:
        table = parquet.ParquetFile(path)
        number = 0
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield Raw(number, row)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read {path} as parquet: {reason}") from error


def _text(path: Path) -> str:
    """The text of a file; invalid UTF-8 becomes lone surrogates, which mark their rows as broken."""
    return files.content(path).decode("utf-8", errors="surrogateescape")


READERS: dict[str, Callable[[Path], Iterator[Raw]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": lambda path: _cells(path, ","),
    ".tsv": lambda path: _cells(path, "\t"),
    ".parquet": _parquet,
}
