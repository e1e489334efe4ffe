"""Directories of several runs. Sole owner of their paths.

A pipeline: a run per stage, a run per method and seed, and a comparison of the methods. A comparison: numbers, a table,
a page, pictures and completions; a sweep has its runs inside, as METHOD/seed-N.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError, escaped
from whet.runs import checkpoints, layout, logs
from whet.runs.directory import RunDirectory

METHODS = "methods"
COMPARISON = "comparison"
FORMAT, OF_CONTESTS = 3, 2  # of comparison.json
RESULTS, TABLE, PAGE = "comparison.json", "comparison.md", "comparison.html"
SAMPLES, ENDING = "samples", ".jsonl.gz"
START = "start"  # the name of the start model's completions


@dataclass(frozen=True, slots=True)
class PipelineDirectory:
    """Runs are stages/NAME and methods/NAME/seed-N."""

    path: Path

    @classmethod
    def create(cls, root: Path, recipe: str) -> PipelineDirectory:
        """A new one in `root`, named by time and recipe as runs are."""
        return cls(_fresh(root, recipe, "pipeline"))

    @classmethod
    def at(cls, path: Path) -> PipelineDirectory:
        """Exactly at `path`: absent, empty, or a pipeline that was started."""
        _require_free(path, "pipeline", is_ours=(path / layout.STAGES).is_dir())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> PipelineDirectory:
        if not is_pipeline(path):
            raise UserError(f"{path} is not the directory of a pipeline; name one that whet train made")
        return cls(path)

    @property
    def recipe(self) -> str:
        return layout.recipe_of(self.path)

    @property
    def comparison_path(self) -> Path:
        return self.path / COMPARISON

    def stage_path(self, name: str) -> Path:
        return self.path / layout.STAGES / name

    def method_path(self, name: str, seed: int) -> Path:
        return self.path / METHODS / name / f"{layout.SEED}{seed}"

    def runs(self) -> list[Path]:
        """The runs that were started, stages first."""
        begun = (*self.path.glob(f"{layout.STAGES}/*/"), *self.path.glob(f"{METHODS}/*/{layout.SEED}*/"))
        return [run for run in begun if (run / layout.CONFIG).is_file()]

    def config_yaml(self) -> str:
        """The configuration, with `@name` unresolved."""
        return layout.read_config(self.path)

    @contextmanager
    def writing(self, config_yaml: str) -> Iterator[None]:
        """Locks the pipeline for the block, and writes its configuration."""
        try:
            (self.path / layout.STAGES).mkdir(parents=True, exist_ok=True)
            lock = layout.begin(self.path, config_yaml)
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {logs.reason(error)}; choose another place") from error
        try:
            yield
        finally:
            lock.release()

    def remove_if_unused(self) -> None:
        """Removes a pipeline without runs, so that invalid input leaves nothing behind."""
        if any((*self.path.glob(f"{layout.STAGES}/*/"), *self.path.glob(f"{METHODS}/*/*/"))):
            return
        for name in (layout.CONFIG, layout.LOCK):
            (self.path / name).unlink(missing_ok=True)
        _remove_empty(*self.path.glob(f"{METHODS}/*/"), self.path / METHODS, self.path / layout.STAGES, self.path)


@dataclass(frozen=True, slots=True)
class ComparisonDirectory:
    """Files are written atomically, and again by comparing again."""

    path: Path

    @classmethod
    def create(cls, root: Path, recipe: str) -> ComparisonDirectory:
        """A new one in `root`, named by time and recipe as runs are."""
        return cls(_fresh(root, f"compare-{recipe}", "comparison"))

    @classmethod
    def open(cls, path: Path) -> ComparisonDirectory:
        """Exactly at `path`: absent, empty, or a comparison that was started."""
        is_ours = (path / RESULTS).is_file() or any(path.glob(f"*/{layout.SEED}*"))
        _require_free(path, "comparison", is_ours=is_ours)
        return cls(path)

    @property
    def results_path(self) -> Path:
        return self.path / RESULTS

    @property
    def table_path(self) -> Path:
        return self.path / TABLE

    @property
    def page_path(self) -> Path:
        return self.path / PAGE

    def picture_path(self, name: str) -> Path:
        return self.path / f"{layout.slug(name)}.png"

    def samples_path(self, name: str) -> Path:
        """The completions of a model."""
        return self.path / SAMPLES / f"{layout.slug(name)}{ENDING}"

    def run_path(self, method: str, seed: int) -> Path:
        """A run of a sweep."""
        return self.path / layout.slug(method) / f"{layout.SEED}{seed}"

    def run(self, method: str, seed: int) -> RunDirectory | None:
        """A run of a sweep, read-only; None before it was started."""
        return RunDirectory.find(self.run_path(method, seed))

    def results(self) -> dict[str, Any]:
        """The numbers; those of another format are rejected."""
        if not is_comparison(self.path):
            raise UserError(f"{self.path} holds no comparison (no {RESULTS}); name one that whet made")
        found = logs.read_json(self.results_path)
        expected = _format(found)
        if found.get("format") != expected:
            raise UserError(
                f"{self.path} holds no comparison of format {expected}, the only one that is read here: make it again, "
                "a pipeline's with whet train PIPELINE --resume, any other with the command in its comparison.md"
            )
        return found

    def samples(self, name: str) -> list[dict[str, Any]]:
        """The completions of a model; empty where they were not shared with the numbers."""
        path = self.samples_path(name)
        return logs.read_rows(path) if path.is_file() else []

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Call it after the runs and samples, and before the report."""
        found = {"format": _format(results), **results}
        self._write(self.results_path, logs.json_bytes(found, indent=2) + b"\n")

    def write_samples(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        path = self.samples_path(name)
        with _writing(path):
            logs.write_rows(path, rows)

    def write_report(self, *, page: str, table: str, pictures: Mapping[str, bytes]) -> None:
        for name, picture in pictures.items():
            self._write(self.picture_path(name), picture)
        self._write(self.table_path, escaped(table, keep="\n").encode())  # it is read in terminals
        self._write(self.page_path, page.encode())

    def remove_if_unused(self) -> None:
        """Removes a comparison without runs, so that invalid input leaves nothing behind."""
        _remove_empty(*self.path.glob("*/"), self.path)

    def _write(self, path: Path, data: bytes) -> None:
        with _writing(path):
            logs.write_atomic(path, data)


def _format(results: Mapping[str, Any]) -> int:
    return OF_CONTESTS if results.get("kind") == "contest" else FORMAT


def is_pipeline(path: Path) -> bool:
    return (path / layout.CONFIG).is_file() and (path / layout.STAGES).is_dir()


def is_comparison(path: Path) -> bool:
    return (path / RESULTS).is_file()


def portable(text: str) -> str:
    """A path to a stage of any pipeline as `@name`, so that a pipeline can be moved."""
    head, mark, tail = text.rpartition(f"/{layout.STAGES}/")
    return f"@{tail}" if mark and head else text


def earlier_checkpoints(run: Path, most: int) -> dict[int, Path]:
    """Step → directory of at most `most` evenly spaced intact checkpoints of a run, without the last."""
    kept = list(layout.by_step(run / layout.CHECKPOINTS).items())[:-1]
    if len(kept) > most:
        kept = [kept[index] for index in sorted({round(i * (len(kept) - 1) / max(1, most - 1)) for i in range(most)})]
    return {step: path for step, path in kept if checkpoints.defect(path) is None}


def first_of_several(path: Path) -> Path | None:
    """One of the runs METHOD/seed-N below a directory, if any."""
    return min(path.glob(f"*/{layout.SEED}*/"), default=None)


def _fresh(root: Path, name: str, what: str) -> Path:
    try:
        return layout.fresh_directory(root, name)
    except OSError as error:
        raise UserError(f"cannot create a {what} in {root}: {logs.reason(error)}; choose another place") from error


def _require_free(path: Path, what: str, *, is_ours: bool) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is not a directory; choose another place with --out")
    if path.is_dir() and any(path.iterdir()) and not is_ours:
        raise UserError(f"{path} is not empty and holds no {what}; choose another place with --out")


def _remove_empty(*directories: Path) -> None:
    for directory in directories:
        with suppress(OSError):  # not empty, or absent
            directory.rmdir()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunFailed(f"cannot write {path}: {logs.reason(error)}") from error
