"""The directory of one pipeline: a run per stage, a run per method and seed, and their comparison.

Sole owner of its paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from whet.errors import UserError
from whet.runs import layout, logs
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
