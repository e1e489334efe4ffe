"""Files that a kill cannot spoil: logs of JSON lines that are appended to, and files that appear whole or not at all.

Knows nothing about what the lines mean, except that every line of a log carries its `step`.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from whet.errors import RunFailed

TEMPORARY = ".tmp-"  # how the name of everything unfinished begins
CHECKSUM = "checksum"  # in a file that carries its own
UNREADABLE = (OSError, EOFError, zlib.error)  # what reading a torn or damaged gzip file raises


class Appender:
    """A log that is open for writing: one write per line, so that a kill tears at most the last line."""

    def __init__(self, path: Path) -> None:
        """Opens the log at its end; a torn last line that an earlier process left is cut off."""
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        whole = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(self._file, whole)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds one line, or nothing at all when the disk takes only a part of it."""
        size = os.fstat(self._file).st_size
        rest = memoryview(json_line(row))
        try:
            while rest:  # a second round happens only when the disk is full, and then raises the reason
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def sync(self) -> None:
        """Returns when all lines are on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class RowsWriter:
    """Writes one file of rows at a time on a thread of its own; what went wrong there is raised by `wait`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="whet-rows")  # starts with its first task
        self._pending: Future[None] | None = None

    def write(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        """Begins to write a file as `write_rows` does, after the one before; the rows must not change any more."""
        self.wait()
        self._pending = self._thread.submit(write_rows, path, rows)

    def wait(self) -> None:
        """Returns when the last file is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, and ends the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log that may still be written; a torn last line is left out, any other damage is an error."""
    return [row for row, _ in _log_lines(path)]


def cut_log(path: Path, step: int) -> None:
    """Drops all lines of later steps, and a torn last line, in one atomic change."""
    if not path.exists():
        return
    kept = b"".join(line for row, line in _log_lines(path) if row["step"] <= step)
    if len(kept) != path.stat().st_size:
        write_atomic(path, kept)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file of JSON lines atomically, compressed when its name ends in .gz; equal rows give equal bytes."""
    with atomic_file(path) as file:
        if path.suffix != ".gz":
            file.writelines(json_line(row) for row in rows)
            return
        # No name and no time in the header: the bytes depend on the rows alone. A higher level takes
        # longer than the files become smaller.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=1) as packed:
            for row in rows:
                packed.write(json_line(row))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that was written whole."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except UNREADABLE as error:
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error
    if data and not data.endswith(b"\n"):
        raise RunFailed(f"{path} ends in the middle of a line")
    return [_parse(line, path, number) for number, line in enumerate(data.split(b"\n")[:-1], start=1)]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error
    return _parse(data, path, 1)


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object with a checksum of the rest of it, in one atomic change."""
    written = json.loads(json_bytes(content))
    write_atomic(path, json_bytes({**written, CHECKSUM: _checksum(written)}, indent=2) + b"\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, compared with its checksum; without one it is an older version's."""
    content = read_json(path)
    if CHECKSUM in content and content.pop(CHECKSUM) != _checksum(content):
        raise RunFailed(f"{path} does not match its checksum")
    return content


def write_atomic(path: Path, data: bytes) -> None:
    """Puts a file in place whole: whoever looks, at any moment, sees the old content or the new one."""
    with atomic_file(path) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes its place when the block ends well and leaves no trace when it does not."""
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
    """A fresh name in the same directory, so that a rename moves no data."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def remove_leftovers(directory: Path) -> None:
    """Removes what a killed process had not finished."""
    for leftover in directory.glob(f"{TEMPORARY}*"):
        remove(leftover)


def remove(path: Path) -> None:
    """Deletes a directory with all that is in it, a file, or a link but not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def sync_directory(path: Path) -> None:
    """Returns when the names in this directory are on the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    except OSError as error:
        # Some network file systems cannot sync a directory; there its names are durable already or never.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(directory)


def json_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON; numbers that are not finite become null."""
    return json_bytes(row) + b"\n"


def json_bytes(
    value: Any,
    *,
    not_finite: Callable[[float], Any] = lambda _: None,
    other: Callable[[Any], Any] | None = None,
    indent: int | None = None,
) -> bytes:
    """Strict JSON in ASCII, floats in full precision; `not_finite` and `other` replace what JSON cannot say."""
    try:
        return json.dumps(value, allow_nan=False, default=other, indent=indent).encode()
    except ValueError:
        value = _replaced(value, not_finite)
        return json.dumps(value, allow_nan=False, default=other, indent=indent).encode()


def plain_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """The values in the order of their names, as Python numbers, None for those that are not finite."""
    if "step" in values:
        raise ValueError("the step is given apart from the values")
    plain = {name: value if isinstance(value, int) else float(value) for name, value in sorted(values.items())}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}


def reason(error: BaseException) -> str:
    """Why it failed, in one line."""
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return " ".join(str(error).split()) or type(error).__name__


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(content)).hexdigest()


def _log_lines(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn, or empty
    except OSError as error:
        raise RunFailed(f"{path} cannot be read: {reason(error)}") from error
    try:
        rows = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
    except RunFailed as error:
        raise RunFailed(f"{error}: delete that line; a run goes on without it, and says so") from error
    for number, row in enumerate(rows, start=1):
        if type(row.get("step")) is not int:
            raise RunFailed(f"{path}, line {number}: no step")
        wrong = [name for name, value in row.items() if value is not None and type(value) not in (int, float)]
        if wrong:
            raise RunFailed(f"{path}, line {number}: {wrong[0]} is not a number; put the file back as whet wrote it")
    return [(row, line + b"\n") for row, line in zip(rows, lines, strict=True)]


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
    """The name of a step's file or directory, without its ending."""
    return f"step-{step:06d}"
