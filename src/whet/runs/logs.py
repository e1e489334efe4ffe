"""Crash-safe files: JSON-lines logs with a `step` in every line, and atomic replacement of files."""

import errno
import gzip
import hashlib
import json
import math
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from whet.errors import RunFailed

TEMPORARY = ".tmp-"  # prefix of unfinished files
LARGEST_STEP = 2**53  # the largest whole number that is exact in a browser
CHECKSUM = "checksum"  # a file's own key
STRICT = json.JSONEncoder(allow_nan=False)
UNREADABLE = (OSError, EOFError, zlib.error)  # errors of a truncated or damaged gzip file


class Appender:
    """A log open for appending: one write per line, so that a kill truncates at most the last line."""

    def __init__(self, path: Path) -> None:
        """Removes an incomplete last line of an earlier process."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        whole = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, whole)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds one line, or nothing if the disk is full."""
        size = os.fstat(self._file).st_size
        rest = memoryview(json_line(row))
        try:
            while rest:  # a second write happens only on a full disk, and raises the error
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, which may still grow; an incomplete last line is ignored, other damage is an error."""
    return [row for row, _ in _log_lines(path)]


def cut_log(path: Path, step: int) -> None:
    """Removes the lines of later steps and an incomplete last line, atomically."""
    if not path.exists():
        return
    kept = b"".join(line for row, line in _log_lines(path) if row["step"] <= step)
    if len(kept) != path.stat().st_size:
        write_atomic(path, kept)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes JSON lines atomically, compressed if the name ends in .gz; equal rows give equal bytes."""
    with atomic_file(path) as file:
        if path.suffix != ".gz":
            file.writelines(json_line(row) for row in rows)
            return
        # No name and time in the header: the bytes depend on the rows alone. Higher levels are slow for little gain.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=1) as packed:
            for row in rows:
                packed.write(json_line(row))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file by `write_rows`."""
    data = _read(path)
    if data and not data.endswith(b"\n"):
        raise RunFailed(f"{path} is truncated in the middle of a line")
    return [_parse(line, path, number) for number, line in enumerate(data.split(b"\n")[:-1], start=1)]


def read_json(path: Path) -> dict[str, Any]:
    return _parse(_read(path), path, 1)


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object with its checksum, atomically."""
    written = json.loads(json_bytes(content))
    write_atomic(path, json_bytes({**written, CHECKSUM: _checksum(written)}, indent=2) + b"\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads an object and verifies its checksum, which files of older versions lack."""
    content = read_json(path)
    if CHECKSUM in content and content.pop(CHECKSUM) != _checksum(content):
        raise RunFailed(f"{path} does not match its checksum")
    return content


def write_atomic(path: Path, data: bytes) -> None:
    with atomic_file(path) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces `path` when the block succeeds, and leaves no trace otherwise."""
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def temporary_beside(path: Path) -> Path:
    """A new name in the same directory, so that a rename moves no data."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def remove_leftovers(directory: Path) -> None:
    """Removes unfinished files of a killed process."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        remove(leftover)


def remove(path: Path) -> None:
    """Deletes a directory with its content, a file, or a link but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def made_directory(path: Path) -> Path:
    """The directory, made on disk if it is not there."""
    if not path.is_dir():
        path.mkdir()
        sync_directory(path.parent)
    return path


def bytes_below(path: Path) -> int:
    """Bytes of all files in a directory; 0 if it does not exist. A file with several names counts once."""
    found = (file.stat() for file in path.rglob("*") if file.is_file())
    return sum({(status.st_dev, status.st_ino): status.st_size for status in found}.values())


def sync_directory(path: Path) -> None:
    """Waits until the names in this directory are on disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    except OSError as error:
        # Not supported by some network file systems.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(directory)


class Rendered(bytes):
    """A value that is JSON already."""


def json_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON; NaN and infinities become null. Values that are rendered come last."""
    ready = {name: value for name, value in row.items() if type(value) is Rendered}
    if not ready:
        return json_bytes(row) + b"\n"
    line = json_bytes({name: value for name, value in row.items() if name not in ready})
    more = [b"%s: %s" % (_json_name(name), value) for name, value in ready.items()]
    return b", ".join([line[:-1], *more] if len(line) > 2 else [b"{" + more[0], *more[1:]]) + b"}\n"


@cache
def _json_name(name: str) -> bytes:
    return json_bytes(name)


def json_bytes(
    value: Any,
    *,
    not_finite: Callable[[float], Any] = lambda _: None,
    other: Callable[[Any], Any] | None = None,
    indent: int | None = None,
) -> bytes:
    """Strict JSON in ASCII, floats in full precision; `not_finite` and `other` convert what JSON lacks."""
    # One encoder for all the lines of logs and rollouts: to make one costs as much as a short line.
    is_plain = other is None and indent is None
    encoder = STRICT if is_plain else json.JSONEncoder(allow_nan=False, default=other, indent=indent)
    try:
        return encoder.encode(value).encode()
    except ValueError:
        return encoder.encode(_replaced(value, not_finite)).encode()


def plain_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values sorted by name, as Python numbers; None for NaN and infinities."""
    if "step" in values:
        raise ValueError("pass the step separately from the values")
    plain = {name: value if isinstance(value, int) else float(value) for name, value in sorted(values.items())}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def reason(error: BaseException) -> str:
    """The message of an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split()) or type(error).__name__


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():  # reading a pipe would wait for ever
        raise RunFailed(f"{path} is a pipe or device, not a file: remove it, or restore the file that whet wrote")
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except UNREADABLE as error:
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(content)).hexdigest()


def _log_lines(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    if not path.exists():
        return []
    lines = _read(path).split(b"\n")[:-1]  # the rest is incomplete, or empty
    try:
        rows = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
    except RunFailed as error:
        raise RunFailed(f"{error}: delete that line; a resumed run continues without it and reports that") from error
    for number, row in enumerate(rows, start=1):
        if type(row.get("step")) is not int or abs(row["step"]) > LARGEST_STEP:
            raise RunFailed(f"{path}, line {number}: no step")
        wrong = [name for name, value in row.items() if value is not None and not _is_logged(value)]
        if wrong:
            raise RunFailed(f"{path}, line {number}: {wrong[0]} is not a number; restore the file that whet wrote")
    return [(row, line + b"\n") for row, line in zip(rows, lines, strict=True)]


def _is_logged(value: Any) -> bool:
    """Whether it is a number of the kind that logs hold: a float of any value, or an int that one can hold."""
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"{path}, line {number}: not valid JSON ({reason(error)})") from error
    if not isinstance(row, dict):
        raise RunFailed(f"{path}, line {number}: not a JSON object")
    return row


def _replaced(value: Any, not_finite: Callable[[float], Any]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return not_finite(value)
    if isinstance(value, Mapping):
        return {key: _replaced(item, not_finite) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, not_finite) for item in value]
    return value


def step_name(step: int) -> str:
    return f"step-{step:06d}"
