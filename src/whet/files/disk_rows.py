"""Sequences whose items are on disk, for data that is larger than memory."""

import json
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, overload

from whet.errors import RunFailed
from whet.files import home_directory

T = TypeVar("T")
SCALARS = (str, int, float, bool, type(None))
CHUNK_ROWS = 1024  # handled at a time where a function takes lists


class DiskRows(Sequence[T], Generic[T]):
    """A sequence in an unnamed temporary file under $WHET_HOME/streaming; memory holds eight bytes per item.

    The file has no name, so the system removes it when the process ends, however it ends. Items are records:
    dataclasses and named tuples of plain values, tuples, lists, mappings and other records.
    """

    def __init__(self, items: Iterable[T]) -> None:
        place = home_directory("streaming")
        try:
            place.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115 - open as long as the sequence lives
            self._ends, self._codec = array("Q"), RecordCodec()
            end = 0
            for item in items:
                end += self._file.write(json.dumps(self._codec.packed(item)).encode())
                self._ends.append(end)
            self._file.flush()
        except OSError as error:
            raise RunFailed(
                f"cannot keep rows in {place}: {error.strerror or error}; $WHET_HOME names another directory"
            ) from error

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> "Sequence[T]": ...
    def __getitem__(self, place: int | slice) -> "T | Sequence[T]":
        if isinstance(place, slice):
            return View(self, range(len(self))[place])
        place = range(len(self))[place]
        start = self._ends[place - 1] if place else 0
        read = os.pread(self._file.fileno(), self._ends[place] - start, start)
        item: T = self._codec.unpacked(json.loads(read))
        return item


class RecordCodec:
    """Records as JSON values and back. Types are numbered as they come, so a number is read only where it was written.

    Scalars and strings are themselves; everything else is a list with its kind first.
    """

    def __init__(self) -> None:
        self._types: list[tuple[Any, tuple[str, ...]]] = []  # with the names of their fields
        self._numbers: dict[type[Any], int] = {}

    def packed(self, item: Any) -> Any:
        kind = type(item)
        if kind in SCALARS:
            return item
        if kind is tuple or kind is list:
            plain = list(item) if all(type(one) in SCALARS for one in item) else [self.packed(one) for one in item]
            return [kind.__name__, plain]
        if isinstance(item, Mapping):
            return ["dict", [[self.packed(key), self.packed(value)] for key, value in item.items()]]
        number = self._numbers.setdefault(kind, len(self._numbers))
        if number == len(self._types):
            self._types.append((kind, getattr(kind, "_fields", None) or tuple(one.name for one in fields(item))))
        return [number, *(self.packed(getattr(item, name)) for name in self._types[number][1])]

    def unpacked(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, *content = value
        if kind == "dict":
            return {self.unpacked(key): self.unpacked(one) for key, one in content[0]}
        if isinstance(kind, str):
            return (tuple if kind == "tuple" else list)(self.unpacked(one) for one in content[0])
        found, names = self._types[kind]
        return found(**dict(zip(names, map(self.unpacked, content), strict=True)))


class View(Sequence[T], Generic[T]):
    """Items of a sequence on disk: some of them, by their places, or all of them changed by a function."""

    def __init__(self, rows: Sequence[Any], places: Sequence[int], change: Callable[[Any], T] | None = None) -> None:
        self._rows, self._places, self._change = rows, places, change

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> "View[T]": ...
    def __getitem__(self, place: int | slice) -> "T | View[T]":
        if isinstance(place, slice):
            return View(self._rows, self._places[place], self._change)
        item = self._rows[self._places[place]]
        return item if self._change is None else self._change(item)


def on_disk(rows: Sequence[Any]) -> bool:
    return isinstance(rows, DiskRows | View)


def picked(rows: Sequence[T], places: Iterable[int]) -> Sequence[T]:
    """The rows at these places: a list, or a view if they are on disk."""
    return View(rows, array("Q", places)) if on_disk(rows) else [rows[place] for place in places]


def changed(rows: Sequence[Any], change: Callable[[Any], T]) -> Sequence[T]:
    """What a function makes of each row: a tuple, or a view that calls it whenever a row is read from disk."""
    return View(rows, range(len(rows)), change) if on_disk(rows) else tuple(map(change, rows))


def kept_like(rows: Sequence[Any], items: Iterable[T]) -> Sequence[T]:
    """What was made of the rows, kept where they are: on disk, or in memory as a list."""
    return DiskRows(items) if on_disk(rows) else list(items)


def in_chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in lists: all at once if they are in memory, else some at a time."""
    size = CHUNK_ROWS if on_disk(rows) else max(1, len(rows))
    for start in range(0, len(rows), size):
        yield list(rows[start : start + size])
