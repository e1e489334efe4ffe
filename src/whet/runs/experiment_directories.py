"""The directory of one pipeline: a run per stage, a run per method and seed, and their comparison.

Sole owner of its paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError, escaped
from whet.runs import checkpoints, layout, logs
from whet.runs.directory import Run
from whet.runs.lock import WriterLock

METHODS = "methods"
COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class PipelineDirectory:
    """Made by `create`, `at` or `open`; its runs are stages/NAME and methods/NAME/seed-N."""

    path: Path

    @classmethod
    def create(cls, root: Path, recipe: str) -> PipelineDirectory:
        """A new one in `root`, named by the time and the recipe, as runs are."""
        try:
            return cls(layout.fresh_directory(root, recipe))
        except OSError as error:
            raise UserError(
                f"cannot create a pipeline in {root}: {logs.reason(error)}; choose another place"
            ) from error

    @classmethod
    def at(cls, path: Path) -> PipelineDirectory:
        """Exactly there: not yet made, empty, or a pipeline that was begun."""
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is not a directory; choose another place with --out")
        if path.is_dir() and any(path.iterdir()) and not (path / layout.STAGES).is_dir():
            raise UserError(f"{path} is not empty and holds no pipeline; choose another place with --out")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> PipelineDirectory:
        """An existing one."""
        if not is_pipeline(path):
            raise UserError(f"{path} is not the directory of a pipeline; name one that whet train made")
        return cls(path)

    @property
    def recipe(self) -> str:
        """The name of the recipe that the pipeline was made from."""
        return layout.recipe_of(self.path)

    @property
    def comparison_path(self) -> Path:
        """Where the comparison of the methods belongs."""
        return self.path / COMPARISON

    def stage_path(self, name: str) -> Path:
        """Where the run of a stage belongs."""
        return self.path / layout.STAGES / name

    def method_path(self, name: str, seed: int) -> Path:
        """Where the run of a method with a seed belongs."""
        return self.path / METHODS / name / f"{layout.SEED}{seed}"

    def runs(self) -> list[Path]:
        """The runs that were begun, stages first."""
        begun = (*self.path.glob(f"{layout.STAGES}/*/"), *self.path.glob(f"{METHODS}/*/{layout.SEED}*/"))
        return [run for run in begun if (run / layout.CONFIG).is_file()]

    def config_yaml(self) -> str:
        """The configuration, `@name` as it was written."""
        return layout.read_config(self.path)

    @contextmanager
    def writing(self, config_yaml: str) -> Iterator[None]:
        """While the block runs no other process goes on with the pipeline, which has this configuration from now on."""
        try:
            (self.path / layout.STAGES).mkdir(parents=True, exist_ok=True)
            lock = WriterLock(self.path / layout.LOCK, self.path)
            try:
                logs.remove_leftovers(self.path)
                logs.write_atomic(self.path / layout.CONFIG, config_yaml.encode())
            except OSError:
                lock.release()
                raise
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {logs.reason(error)}; choose another place") from error
        try:
            yield
        finally:
            lock.release()

    def remove_if_unused(self) -> None:
        """Removes a pipeline in which no run was begun, so that wrong input leaves nothing behind."""
        if any((*self.path.glob(f"{layout.STAGES}/*/"), *self.path.glob(f"{METHODS}/*/*/"))):
            return
        for name in (layout.CONFIG, layout.LOCK):
            (self.path / name).unlink(missing_ok=True)
        for folder in (*self.path.glob(f"{METHODS}/*/"), self.path / METHODS, self.path / layout.STAGES, self.path):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()


def is_pipeline(path: Path) -> bool:
    """Whether a directory is that of a pipeline."""
    return (path / layout.CONFIG).is_file() and (path / layout.STAGES).is_dir()


def portable(text: str) -> str:
    """A path to a stage of any pipeline as `@name`, so that a pipeline stays itself when it is moved."""
    head, mark, tail = text.rpartition(f"/{layout.STAGES}/")
    return f"@{tail}" if mark and head else text


FORMAT = 2  # of comparison.json
RESULTS, TABLE, PAGE = "comparison.json", "comparison.md", "comparison.html"
RESULTS_1 = "final_results.json"  # what format 1 called the numbers of a pipeline
SAMPLES, ENDING = "samples", ".jsonl.gz"
START = "start"  # what the completions of the start model are called


@dataclass(frozen=True, slots=True)
class ComparisonDirectory:
    """Made by `create` or `open` where it holds runs. Files are written whole, and made again by comparing again."""

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

    def run_path(self, method: str, seed: int) -> Path:
        """Where a sweep has the run of a method with a seed."""
        return self.path / layout.slug(method) / f"{layout.SEED}{seed}"

    def run(self, method: str, seed: int) -> Run | None:
        """The run of a method with a seed, to read; None before it was begun."""
        return Run.find(self.run_path(method, seed))

    def results(self) -> dict[str, Any]:
        """The numbers; those that another version of whet wrote are refused."""
        if not is_comparison(self.path):
            raise UserError(f"{self.path} holds no comparison (no {RESULTS}); name one that whet made")
        found = logs.read_json(self.results_path) if self.results_path.is_file() else {}
        if found.get("format") != FORMAT:
            raise UserError(
                f"{self.path} holds no comparison of format {FORMAT}, the only one that is read here: make it again, "
                "a pipeline's with whet train PIPELINE --resume, any other with the command in its comparison.md"
            )
        return found

    def samples(self, name: str) -> list[dict[str, Any]]:
        """The completions of a model, one row each; none where whoever shares the numbers left them out."""
        path = self.samples_path(name)
        return logs.read_rows(path) if path.is_file() else []

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Writes the numbers, with the number of their format; call it last but for what is drawn from them."""
        self._write(self.results_path, logs.json_bytes({"format": FORMAT, **results}, indent=2) + b"\n")

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

    def remove_if_unused(self) -> None:
        """Removes a directory in which no run was begun, so that wrong input leaves nothing behind."""
        for directory in (*self.path.glob("*/"), self.path):
            with suppress(OSError):  # not empty, or not there
                directory.rmdir()

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


def is_comparison(path: Path) -> bool:
    """Whether a directory is that of a comparison, also of an older format, in which a run's results had its name."""
    return (path / RESULTS).is_file() or ((path / RESULTS_1).is_file() and not (path / layout.CONFIG).exists())


def first_of_several(path: Path) -> Path | None:
    """One of the runs below a directory that holds METHOD/seed-N; None where it holds none."""
    return min(path.glob(f"*/{layout.SEED}*/"), default=None)
