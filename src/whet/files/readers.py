"""Files of rows → their rows one by one, each with its line. A broken row is returned with its problem, to be counted.

Only a JSON list is read into memory as a whole; of all other files, what has not been asked for is not read. A file
that cannot be read at all (absent, truncated archive, unterminated JSON) raises.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet import files
from whet.errors import UserError
from whet.imports import optional_package

CELL_LIMIT = 2**31 - 1  # characters per CSV cell; Python's default is shorter than many completions
SPACE = " \t\r\n"
BEGINNING = 2**16  # bytes in which the first character of a JSON file is looked for

ROWS = "rows.jsonl"  # read where a directory is named


@dataclass(frozen=True, slots=True)
class Raw:
    """One row of a file, before parsing."""

    line: int  # the first line; the row number in parquet
    columns: dict[str, Any]
    problem: str = ""  # why it cannot be read, with file and line; else empty
    row: int = 0  # its number in a list, where lines do not tell its rows apart


def read_file(path: Path) -> Iterator[Raw]:
    """The rows of a .jsonl, .json, .csv, .tsv or .parquet file, each also as .gz or .xz."""
    suffix = files.unpacked_suffix(path.name)
    if suffix not in READERS:
        raise UserError(f"{path}: rows are read from {', '.join(READERS)} (each also as .gz or .xz)")
    return READERS[suffix](path)


def is_rows_file(name: str) -> bool:
    """Whether a file of this name can hold rows."""
    return files.unpacked_suffix(name) in READERS


def is_file_name(name: str) -> bool:
    """Whether this names a file rather than a data set on the hub."""
    return is_rows_file(name) or name.startswith((".", "/"))


def plain_value(value: Any) -> Any:
    """A value of a table as JSON has it: null for NaN and infinities, which tables write for missing numbers."""
    if isinstance(value, dict):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain_value(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _json_lines(path: Path) -> Iterator[Raw]:
    for number, line in files.lines(path):
        try:
            yield Raw(number, files.json_object(line, f"{path}:{number}"))
        except UserError as error:
            yield Raw(number, {}, str(error))


def _json(path: Path) -> Iterator[Raw]:
    """One list of objects, or one object per line if the file does not start with a bracket."""
    with files.opened(path) as file:
        start = file.read(BEGINNING).removeprefix(files.BYTE_ORDER_MARK)
    return _json_array(path, _text(path)) if start.lstrip().startswith(b"[") else _json_lines(path)


def _json_array(path: Path, text: str) -> Iterator[Raw]:
    """Decodes a JSON list element by element, to know the line of each."""
    decoder = json.JSONDecoder()
    place = _after_space(text, text.index("[") + 1)
    line, counted, row = 1, 0, 0
    while text[place : place + 1] != "]":
        line, counted, row = line + text.count("\n", counted, place), place, row + 1
        where = f"{path}:{line} (row {row})"
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{line} is not JSON: {error}") from error
        try:
            yield Raw(line, files.checked_object(value, where), row=row)
        except UserError as error:
            yield Raw(line, {}, str(error), row=row)
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
    with files.opened(path) as file:
        # Invalid UTF-8 becomes lone surrogates, which mark their rows as broken; -sig drops a byte-order mark.
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(text, delimiter=delimiter, strict=True)
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
    purpose = f"{path}: reading Parquet"
    arrow, parquet = optional_package("pyarrow", purpose), optional_package("pyarrow.parquet", purpose)
    try:
        packed = path.suffix.lower() in (".gz", ".xz")
        table = parquet.ParquetFile(io.BytesIO(files.content(path)) if packed else path)
        number = 0
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield Raw(number, plain_value(row))
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
