"""`whet.pipeline`: stages that build on each other, then methods that are compared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.api.given import build_recipe, read_given, read_source
from whet.api.run import Run
from whet.api.training import runs_root
from whet.cli.pipeline import resume_pipeline, train_pipeline
from whet.errors import UserError
from whet.recipe import Pipeline, parse_yaml
from whet.runs.directory import Run as RunDirectory
from whet.runs.judged import JudgedDirectory, is_judged
from whet.runs.pipeline import PipelineDirectory


class PipelineRun:
    """The directory of a pipeline: its stages and methods are runs."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._directory = PipelineDirectory.open(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"PipelineRun({str(self.path)!r}, stages {list(self.stages)}, methods {list(self.methods)})"

    @property
    def config(self) -> dict[str, Any]:
        """The recipe that was run, every key of it."""
        return parse_yaml(self._directory.config_yaml(), where=str(self.path))

    @property
    def stages(self) -> dict[str, Run]:
        """The runs of the stages that were begun."""
        paths = {name: self._directory.stage_path(name) for name in self.config["stages"]}
        return {name: Run(path) for name, path in paths.items() if RunDirectory.find(path) is not None}

    @property
    def methods(self) -> dict[tuple[str, int], Run]:
        """The runs of the methods that were begun, by name and seed."""
        config = self.config
        named = [(name, seed) for name, one in config["methods"].items() for seed in config["seeds"] or [one["seed"]]]
        paths = {(name, seed): self._directory.method_path(name, seed) for name, seed in named}
        return {name: Run(path) for name, path in paths.items() if RunDirectory.find(path) is not None}

    @property
    def results(self) -> dict[str, Any] | None:
        """How the methods were judged; None where that was not asked for, or is still to come."""
        place = self._directory.comparison_path
        return JudgedDirectory(place).results() if is_judged(place) else None


def pipeline(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    name: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    accept_changes: bool = False,
    **keys: Any,
) -> PipelineRun:
    """Runs a pipeline in a new directory below `root`, or goes on with one; keywords change its recipe, by key.

    `stages={"sft": {"steps": 100}}` changes one stage. Functions and tasks are named by file: the runs of a pipeline
    are made one by one, and each must be found again by its own.
    """
    given = read_given(keys, None, overrides, None)
    if given.objects:
        raise UserError(
            f"a pipeline finds functions by file, not as objects: put {', '.join(given.objects)} in a module"
        )
    if resume is not None:
        resume_pipeline(Path(resume).expanduser(), given.words(), accept_changes=accept_changes)
        return PipelineRun(resume)
    if recipe is None:
        raise UserError("nothing to run: name a recipe, e.g. whet.pipeline('rlhf-reviews'), or resume=DIRECTORY")
    written, name, where = read_source(recipe, name)
    found = build_recipe(written, given, None, name=name, where=where)
    if not isinstance(found, Pipeline):
        raise UserError(f"{where} is a recipe of one run: use whet.train")
    return PipelineRun(train_pipeline(found, runs_root(root)))
