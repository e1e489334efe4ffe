"""The directory of one comparison: a run per method and seed, and what was made of them. Sole owner of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError, escaped
from whet.runs import layout, logs
from whet.runs.directory import Run

RESULTS = "comparison.json"
TABLE = "comparison.md"
CURVES = "curves.png"


@dataclass(frozen=True, slots=True)
class ComparisonDirectory:
    """Made by `create` or `open`; its runs are METHOD/seed-N."""

    path: Path

    @classmethod
    def create(cls, root: Path, recipe: str) -> ComparisonDirectory:
        """A new one in `root`, named by the time and the recipe, as runs are."""
        try:
            return cls(layout.fresh_directory(root, f"compare-{recipe}"))
        except OSError as error:
            raise UserError(f"cannot create a comparison in {root}: {logs.reason(error)}; choose another") from error

    @classmethod
    def open(cls, path: Path) -> ComparisonDirectory:
        """Exactly there: not yet made, empty, or a comparison that was begun."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is not a directory; choose another place with --out")
        foreign = path.is_dir() and any(path.iterdir()) and not any(path.glob(f"*/{layout.SEED}*"))
        if foreign and not (path / RESULTS).is_file():
            raise UserError(f"{path} is not empty and holds no comparison; choose another place with --out")
        return cls(path)

    @property
    def results_path(self) -> Path:
        """Where everything belongs, for scripts."""
        return self.path / RESULTS

    @property
    def table_path(self) -> Path:
        """Where the table and the verdict belong."""
        return self.path / TABLE

    @property
    def curves_path(self) -> Path:
        """Where the picture of the curves belongs."""
        return self.path / CURVES

    def run_path(self, method: str, seed: int) -> Path:
        """Where the run of a method with a seed belongs."""
        return self.path / layout.slug(method) / f"{layout.SEED}{seed}"

    def run(self, method: str, seed: int) -> Run | None:
        """The run of a method with a seed, to read; None before it was begun."""
        return Run.find(self.run_path(method, seed))

    def results(self) -> dict[str, Any]:
        """Everything, as it was written when the runs were last looked at."""
        return logs.read_json(self.results_path)

    def write(self, *, results: Mapping[str, Any], table: str, curves: bytes) -> None:
        """Writes the three files, each whole or not at all."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            logs.write_atomic(self.curves_path, curves)
            logs.write_atomic(self.table_path, escaped(table, keep="\n").encode())  # it is read in terminals
            logs.write_atomic(self.results_path, logs.json_bytes(results, indent=2) + b"\n")
        except OSError as error:
            raise RunFailed(f"cannot write the comparison in {self.path}: {logs.reason(error)}") from error

    def remove_if_unused(self) -> None:
        """Removes a directory in which no run was begun, so that wrong input leaves nothing behind."""
        for directory in (*self.path.glob("*/"), self.path):
            with suppress(OSError):  # not empty, or not there
                directory.rmdir()


def is_comparison(path: Path) -> bool:
    """Whether a directory is that of a comparison whose runs were looked at."""
    return (path / RESULTS).is_file()


def first_of_several(path: Path) -> Path | None:
    """One of the runs below a directory that holds METHOD/seed-N; None where it holds none."""
    return min(path.glob(f"*/{layout.SEED}*/"), default=None)
