"""The directory of one judging of methods: numbers, completions, pictures and a page. Sole owner of its paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError, escaped
from whet.runs import checkpoints, layout, logs

RESULTS = "final_results.json"
TABLE = "comparison.md"
PAGE = "comparison.html"
SAMPLES = "samples"
START = "start"  # what the completions of the start model are called
ENDING = ".jsonl.gz"


@dataclass(frozen=True, slots=True)
class JudgedDirectory:
    """Everything in it is written whole, and made again by judging again."""

    path: Path

    @property
    def results_path(self) -> Path:
        """Where all numbers belong, for scripts."""
        return self.path / RESULTS

    @property
    def table_path(self) -> Path:
        """Where the table and the verdict belong."""
        return self.path / TABLE

    @property
    def page_path(self) -> Path:
        """Where the page belongs."""
        return self.path / PAGE

    def picture_path(self, name: str) -> Path:
        """Where a picture belongs."""
        return self.path / f"{layout.slug(name)}.png"

    def samples_path(self, name: str) -> Path:
        """Where the completions of a model belong."""
        return self.path / SAMPLES / f"{layout.slug(name)}{ENDING}"

    def results(self) -> dict[str, Any]:
        """The numbers."""
        if not self.results_path.is_file():
            raise UserError(f"{self.path} holds no comparison of methods (no {RESULTS}); name one that whet made")
        return logs.read_json(self.results_path)

    def has_samples(self, name: str) -> bool:
        """Whether the completions of a model are there: whoever shares the numbers may leave them out."""
        return self.samples_path(name).is_file()

    def samples(self, name: str) -> list[dict[str, Any]]:
        """The completions of a model, one row each."""
        return logs.read_rows(self.samples_path(name))

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Writes the numbers; call it last but for what is drawn from them."""
        self._write(self.results_path, logs.json_bytes(results, indent=2) + b"\n")

    def write_samples(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the completions of a model."""
        path = self.samples_path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            logs.write_rows(path, rows)
        except OSError as error:
            raise RunFailed(f"cannot write {path}: {logs.reason(error)}") from error

    def write_report(self, *, page: str, table: str, pictures: Mapping[str, bytes]) -> None:
        """Writes what people look at."""
        for name, picture in pictures.items():
            self._write(self.picture_path(name), picture)
        self._write(self.table_path, escaped(table, keep="\n").encode())  # it is read in terminals
        self._write(self.page_path, page.encode())

    def _write(self, path: Path, data: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            logs.write_atomic(path, data)
        except OSError as error:
            raise RunFailed(f"cannot write {path}: {logs.reason(error)}") from error


def earlier_checkpoints(run: Path, most: int) -> dict[int, Path]:
    """Step → directory of the intact checkpoints that a run still has, but for the last: at most so many, spread."""
    kept = list(layout.by_step(run / layout.CHECKPOINTS).items())[:-1]
    chosen = sorted({round(i * (len(kept) - 1) / max(1, most - 1)) for i in range(most)}) if len(kept) > most else None
    wanted = kept if chosen is None else [kept[index] for index in chosen]
    return {step: path for step, path in wanted if checkpoints.defect(path) is None}


def is_judged(path: Path) -> bool:
    """Whether a directory is that of methods that were judged; the results of a run are called the same."""
    return (path / RESULTS).is_file() and not (path / layout.CONFIG).exists()
