"""Recorded rollouts, for whoever reads them: list, search, one whole row. Trusts no byte, and holds one row at a time.

Imports no torch.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.runs import layout, logs
from whet.runs.rollout_index import Summary, summarise

LONGEST = 2**26  # bytes of a line that is read
NUMBERS = re.compile(rb', "(tokens|mask|logprobs)": \[')  # begin the numbers of a row; within a text quotes are escaped

Row = Mapping[str, Any]
Place = tuple[int, int]  # group and number


class RolloutFiles:
    """The rollouts of a run directory, also of one that is being trained: every call reads what is there now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._problems: dict[str, None] = {}  # in the order in which they were met
        self._summaries: dict[int, tuple[tuple[int, int], list[Summary]]] = {}  # with size and time of the file

    def steps(self) -> list[int]:
        """The steps whose rollouts are recorded."""
        return list(self._files())

    def problems(self) -> list[str]:
        """What could not be read so far, one sentence each; everything else was."""
        return list(self._problems)

    def summaries(self, step: int | None = None) -> list[Summary]:
        """The rollouts of a step, or of all, in order of sampling."""
        if step is not None:
            return self._of_step(step, self._file(step))
        return [one for step, file in self._files().items() for one in self._of_step(step, file)]

    def row(self, step: int, group: int, number: int) -> dict[str, Any]:
        """Everything that is recorded of one rollout."""
        file = self._file(step)
        for place, _, line in self._lines(file):
            if place == (group, number):
                return _parsed(line, f"{file}: rollout {number} of group {group}")
        raise UserError(f"run {self.directory} has no rollout {number} of group {group} at step {step}")

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """Everything that is recorded of a step; ends early, or leaves rows out, where `problems` then says so."""
        return (row for _, row in self._parsed_rows(self._file(step)))

    def search(self, text: str, step: int | None = None, limit: int | None = 1000) -> Iterator[Summary]:
        """The first rollouts whose prompt or completion contains a text, in any case."""
        files = self._files() if step is None else {step: self._file(step)}
        wanted = text.casefold()
        found = (
            summarise(step, *place, row)
            for step, file in files.items()
            for place, row in self._parsed_rows(file, lambda head: wanted in _texts(head))
        )
        return islice(found, limit)

    def history(self, prompt_id: str) -> list[Summary]:
        """The rollouts of a prompt over the steps."""
        return [one for one in self.summaries() if one.prompt_id == prompt_id]

    def _files(self) -> dict[int, Path]:
        return layout.by_step(self.directory / layout.ROLLOUTS, layout.ENDINGS[layout.ROLLOUTS])

    def _file(self, step: int) -> Path:
        files = self._files()
        if step not in files:
            known = ", ".join(map(str, files)) or "none"
            raise UserError(f"run {self.directory} has no rollouts of step {step}; it has those of steps: {known}")
        return files[step]

    def _of_step(self, step: int, file: Path) -> list[Summary]:
        stamp = _stamp(file)
        if step not in self._summaries or self._summaries[step][0] != stamp:
            self._summaries[step] = stamp, [summarise(step, *place, row) for place, row in self._parsed_rows(file)]
        return list(self._summaries[step][1])

    def _parsed_rows(
        self, file: Path, wanted: Callable[[Row], bool] = lambda _: True
    ) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The rows whose head is wanted."""
        for place, head, line in self._lines(file):
            if not wanted(head):
                continue
            try:
                row = _parsed(line, f"{file}: rollout {place[1]} of group {place[0]}")
            except RunFailed as error:
                self._note(str(error))
            else:
                yield place, row

    def _lines(self, file: Path) -> Iterator[tuple[Place, Row, bytes]]:
        """Lines that begin as a row, with place and head: consecutive rows of one prompt are a group."""
        group, number, prompt = -1, 0, None
        for count, line in enumerate(self._whole_lines(file), start=1):
            try:
                head = _head(line)
            except ValueError as error:
                self._note(f"{file}, line {count}: not a JSON object ({logs.reason(error)})")
                continue
            asked = str(head.get("id", "")), str(head.get("prompt", ""))
            group, number = (group, number + 1) if asked == prompt else (group + 1, 0)
            prompt = asked
            yield (group, number), head, line

    def _whole_lines(self, file: Path) -> Iterator[bytes]:
        """The lines of a file up to damage, if there is any."""
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


def _opened(file: Path) -> gzip.GzipFile:
    if not file.is_file():  # reading a pipe would wait for ever
        raise OSError("it is not a file")
    return gzip.open(file, "rb")


def _stamp(file: Path) -> tuple[int, int]:
    """Changes when the file is written again; a file that is gone has none."""
    try:
        about = file.stat()
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _head(line: bytes) -> Row:
    """The id and the texts of a row, which stand before its numbers: a tenth of the time of parsing all."""
    numbers = NUMBERS.search(line)
    return _object(line if numbers is None else line[: numbers.start()] + b"}")


def _texts(row: Row) -> str:
    """Prompt and completion, in the case in which texts are compared."""
    return f"{row.get('prompt', '')}\0{row.get('text', '')}".casefold()


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        return _object(line)
    except ValueError as error:
        raise RunFailed(f"{where} is not valid JSON ({logs.reason(error)})") from error


def _object(data: bytes) -> dict[str, Any]:
    """Raises ValueError for anything but a JSON object."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
