"""The folder whose runs are shown: names of directories in it, and which of them may be read.

Contents are not trusted: a name leads nowhere outside of the folder, and a directory with links out of it, pipes or
devices is not opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from whet.errors import UserError
from whet.runs import layout
from whet.runs.catalogue import experiments, runs_below
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import SAMPLES, first_of_several, is_comparison, is_pipeline

SURVEY = "data.html"  # marks the report of a data set
READ = ("", layout.ROLLOUTS, layout.EVALS, layout.FAILURES, layout.BEST, SAMPLES)  # folders of which files are read
NAMED = 3  # entries that an error names
LONGEST = 200  # characters of a name in an error


class Library:
    """Directories by their path below a folder, or the one directory that is shown alone."""

    def __init__(self, folder: Path) -> None:
        """`folder` of runs, or one run, pipeline or comparison."""
        if not folder.is_dir():
            raise UserError(f"{folder} is not a directory; give a folder of runs, or one run")
        self.folder = folder.resolve()
        is_one = any(check(self.folder) for check in (_is_run, is_pipeline, is_comparison, first_of_several))
        self._base = self.folder.parent if is_one else self.folder
        self.alone = self.folder.name if is_one else ""

    def name(self, path: Path) -> str:
        return path.relative_to(self._base).as_posix()

    def experiments(self) -> list[Path]:
        """Runs, pipelines and comparisons, oldest first."""
        return [self.folder] if self.alone else experiments(self.folder)

    def runs(self) -> list[Path]:
        """All runs, also those of pipelines and comparisons, oldest first."""
        is_one = self.alone and _is_run(self.folder) and not is_pipeline(self.folder)
        return [self.folder] if is_one else runs_below(self.folder)

    def surveys(self) -> list[Path]:
        """Directories with the page of a data set."""
        return sorted(page.parent for page in self.folder.glob(f"*/{SURVEY}"))

    def directory(self, name: str) -> Path:
        """The directory of a name, once nothing that is read in it is dangerous."""
        try:
            path = self._inside(name)
            if not path.is_dir():
                raise UserError(f"there is no directory {name!r} in {self.folder.name}")
            strange = list(self._strange(path))
        except OSError as error:
            raise UserError(f"{name[:LONGEST]!r} cannot be opened: {error.strerror}") from error
        if strange:
            more = f" and {len(strange) - NAMED} more" if len(strange) > NAMED else ""
            raise UserError(
                f"{name} is not opened, because it holds links out of its folder, pipes or devices: "
                f"{', '.join(strange[:NAMED])}{more}; replace them by the files themselves"
            )
        return path

    def run(self, name: str) -> RunDirectory:
        return RunDirectory.open(self.directory(name), is_writer=False)

    def _inside(self, name: str) -> Path:
        parts = name.split("/")
        if "\x00" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
            raise UserError(f"{name[:LONGEST]!r} is not the name of a run")
        path = self._base.joinpath(*parts)
        if not path.resolve().is_relative_to(self.folder):
            raise UserError(f"{name} is a link out of {self.folder.name}: show the folder that it leads to instead")
        return path

    def _strange(self, path: Path) -> Iterator[str]:
        """Entries of the folders that are read which are neither files nor directories of this folder."""
        for folder in READ:
            inside = path / folder
            if inside.is_dir():
                with os.scandir(inside) as entries:
                    yield from (f"{folder}/{entry.name}".lstrip("/") for entry in entries if self._is_strange(entry))

    def _is_strange(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_symlink():
            target = Path(entry.path).resolve()
            return not target.is_relative_to(self.folder) or not (target.is_file() or target.is_dir())
        return not (entry.is_file() or entry.is_dir())


def _is_run(path: Path) -> bool:
    return (path / layout.CONFIG).is_file()
