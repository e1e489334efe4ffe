"""Recorded rollouts, for whoever reads them: list, search, one whole row. Trusts no byte, and holds one row at a time.

Imports no torch.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.runs import layout, logs
from whet.runs.rollout_index import Index, Place, Places, Row, Summary, read_block, read_index, summarise

LONGEST = 2**26  # bytes of a line that is read
NUMBERS = re.compile(rb', "(tokens|mask|logprobs)": \[')  # begin the numbers of a row; within a text quotes are escaped

Stamp = tuple[int, ...]  # of files


class RolloutFiles:
    """The rollouts of a run directory, also of one that is being trained: every call reads what is there now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._problems: dict[str, None] = {}  # in the order in which they were met
        # Step → the state of its files, and what was read of them then: the index, or summaries where there is none.
        self._indexes: dict[int, tuple[Stamp, Index | None]] = {}
        self._summaries: dict[int, tuple[Stamp, list[Summary]]] = {}

    def steps(self) -> list[int]:
        """The steps whose rollouts are recorded."""
        return list(self._files())

    def problems(self) -> list[str]:
        """What could not be read so far, one sentence each; everything else was."""
        return list(self._problems)

    def summaries(self, step: int | None = None) -> list[Summary]:
        """The rollouts of a step, or of all, in order of sampling."""
        files = self._files() if step is None else {step: self._file(step)}
        return [one for step, file in files.items() for one in self._listed(step, file)]

    def row(self, step: int, group: int, number: int) -> dict[str, Any]:
        """Everything that is recorded of one rollout."""
        file, place = self._file(step), (group, number)
        index = self._index(step, file)
        if index is None:
            line = next((line for at, line in self._walked(file) if at == place), None)
        else:
            line = _line(file, index, place)
        if line is None:
            raise UserError(f"run {self.directory} has no rollout {number} of group {group} at step {step}")
        try:
            return _object(line)
        except ValueError as error:
            raise RunFailed(f"{_named(file, place)} is not valid JSON ({logs.reason(error)})") from error

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """Everything that is recorded of a step, without what `problems` then names."""
        return (row for _, row in self.placed_rows(step))

    def placed_rows(self, step: int) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The same, each with its group and number."""
        file = self._file(step)
        return self._parsed(file, self._lines(step, file))

    def search(self, text: str, step: int | None = None, limit: int | None = 1000) -> Iterator[Summary]:
        """The first rollouts whose prompt or completion contains a text, in any case."""
        files = self._files() if step is None else {step: self._file(step)}
        wanted = text.casefold()
        found = (
            summarise(step, *place, row)
            for step, file in files.items()
            for place, row in self._parsed(file, _matching(wanted, self._lines(step, file)))
        )
        return islice(found, limit)

    def history(self, prompt_id: str) -> list[Summary]:
        """The rollouts of a prompt over the steps."""
        return [one for one in self.summaries() if one.prompt_id == prompt_id]

    def _files(self) -> dict[int, Path]:
        return layout.by_step(self.directory / layout.ROLLOUTS, layout.ENDINGS[layout.ROLLOUTS])

    def _file(self, step: int) -> Path:
        return layout.of_step(step, self._files(), self.directory, layout.ROLLOUTS)

    def _index(self, step: int, file: Path) -> Index | None:
        stamp = _stamp(file)
        if step not in self._indexes or self._indexes[step][0] != stamp:
            try:
                found = read_index(file, step)
            except ValueError as error:
                self._note(f"{layout.index_of(file)} is not used, the rows are read through: {logs.reason(error)}")
                found = None
            self._indexes[step] = stamp, found
        return self._indexes[step][1]

    def _listed(self, step: int, file: Path) -> Sequence[Summary]:
        index = self._index(step, file)
        if index is not None:
            return index.summaries
        stamp = _stamp(file)
        if step not in self._summaries or self._summaries[step][0] != stamp:
            rows = self._parsed(file, self._walked(file))
            self._summaries[step] = stamp, [summarise(step, *place, row) for place, row in rows]
        return self._summaries[step][1]

    def _parsed(self, file: Path, lines: Iterable[tuple[Place, bytes]]) -> Iterator[tuple[Place, dict[str, Any]]]:
        for place, line in lines:
            try:
                yield place, _object(line)
            except ValueError as error:
                self._note(f"{_named(file, place)} is not valid JSON ({logs.reason(error)})")

    def _lines(self, step: int, file: Path) -> Iterator[tuple[Place, bytes]]:
        """The rows of a step, packed as JSON."""
        index = self._index(step, file)
        return self._walked(file) if index is None else self._in_blocks(file, index)

    def _in_blocks(self, file: Path, index: Index) -> Iterator[tuple[Place, bytes]]:
        places = (one.place for one in index.summaries)
        for number, block in enumerate(index.blocks, start=1):
            held = list(islice(places, block.rows))
            try:
                yield from zip(held, read_block(file, block), strict=True)
            except (OSError, ValueError) as error:
                self._note(f"{file}, block {number} of {len(index.blocks)} cannot be read: {logs.reason(error)}")

    def _walked(self, file: Path) -> Iterator[tuple[Place, bytes]]:
        """The lines of a file without an index, from its beginning."""
        places = Places()
        for count, line in enumerate(self._whole_lines(file), start=1):
            try:
                place = places.next(_head(line))
            except ValueError as error:
                self._note(f"{file}, line {count} is not valid JSON ({logs.reason(error)})")
            else:
                yield place, line

    def _whole_lines(self, file: Path) -> Iterator[bytes]:
        """The lines up to damage, if there is any."""
        try:
            with _opened(file) as unpacked:
                while line := unpacked.readline(LONGEST):
                    if not line.endswith(b"\n"):
                        why = "a line is too long" if len(line) == LONGEST else "it ends in the middle of a line"
                        self._note(f"{file}: {why}; the rest is not read")
                        return
                    yield line
        except logs.UNREADABLE as error:
            self._note(f"{file} cannot be read to its end: {logs.reason(error)}")

    def _note(self, problem: str) -> None:
        self._problems[problem] = None


def _line(file: Path, index: Index, place: Place) -> bytes | None:
    """The line of one row, read with its block alone; None if there is no such row."""
    found = index.find(place)
    if found is None:
        return None
    block, number = found
    try:
        return read_block(file, block)[number]
    except (OSError, ValueError) as error:
        raise RunFailed(f"{_named(file, place)} cannot be read: {logs.reason(error)}") from error


def _matching(wanted: str, lines: Iterable[tuple[Place, bytes]]) -> Iterator[tuple[Place, bytes]]:
    """The lines with a text in prompt or completion, and those that cannot be read."""
    for place, line in lines:
        try:
            row = _head(line)
        except ValueError:
            yield place, line
        else:
            if wanted in f"{row.get('prompt', '')}\0{row.get('text', '')}".casefold():
                yield place, line


def _opened(file: Path) -> gzip.GzipFile:
    if not file.is_file():  # reading a pipe would wait for ever
        raise OSError("it is not a file")
    return gzip.open(file, "rb")


def _stamp(file: Path) -> Stamp:
    """Changes when rows or index are written again; 0 of a file that is not there."""
    found: list[int] = []
    for one in (file, layout.index_of(file)):
        try:
            about = one.stat()
        except OSError:
            found += [0, 0]
        else:
            found += [about.st_size, about.st_mtime_ns]
    return tuple(found)


def _named(file: Path, place: Place) -> str:
    return f"{file}: rollout {place[1]} of group {place[0]}"


def _head(line: bytes) -> Row:
    """The id and the texts of a row, which stand before its numbers: a tenth of the time of parsing all."""
    numbers = NUMBERS.search(line)
    return _object(line if numbers is None else line[: numbers.start()] + b"}")


def _object(data: bytes) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
