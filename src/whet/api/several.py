"""`whet.compare` and `whet.pipeline`: several runs, made as the commands make them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.api.given import read_given, read_source
from whet.api.run import Run
from whet.api.training import reserved, runs_root
from whet.cli.commands import compare as command
from whet.cli.pipeline_console import resume_pipeline, train_pipeline
from whet.errors import UserError
from whet.recipe import Pipeline, validated, written_recipe
from whet.runs.experiment_directories import ComparisonDirectory, PipelineDirectory, is_comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What came out of several algorithms × seeds."""

    path: Path  # its directory
    page: Path  # table, curves and verdict
    results: Mapping[str, Any]  # comparison.json
    runs: Mapping[tuple[str, int], Run]  # by algorithm and seed

    def __repr__(self) -> str:
        return f"Comparison({str(self.path)!r}): {self.results['verdict']}"

    def _repr_markdown_(self) -> str:
        return self.page.read_text("utf-8")


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """The directory of a pipeline."""

    path: Path

    @property
    def runs(self) -> dict[str, Run]:
        """The runs that were begun, by their place in it: stages/NAME, methods/NAME/seed-N."""
        return {str(run.relative_to(self.path)): Run(run) for run in PipelineDirectory(self.path).runs()}

    @property
    def results(self) -> dict[str, Any] | None:
        """How the methods were judged; None where that was not asked for, or is still to come."""
        place = PipelineDirectory(self.path).comparison_path
        return ComparisonDirectory(place).results() if is_comparison(place) else None


def compare(
    recipe: str | os.PathLike[str],
    *,
    algorithms: Sequence[str],
    seeds: int | Sequence[int] = 3,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    target: float = command.TARGET,
    **keys: Any,
) -> Comparison:
    """A run for each algorithm (a preset) and seed, then a table, curves and a verdict; keywords change the recipe.

    `directory` is exactly where; a comparison that was begun there goes on. `target` is the held-out accuracy whose
    step is looked for.
    """
    source, numbers = os.fspath(recipe), list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    words = read_given(keys, overrides=overrides).words(of="a comparison")
    wanted: dict[str, Any] = {
        "methods": ",".join(algorithms),
        "seeds": f"{','.join(map(str, numbers))},",
        "target": target,
    }
    with reserved(runs_root(root), f"compare-{written_recipe(source)[1]}", directory) as path:
        command.compare(source, words, **wanted, changes=[], runs=path.parent, out=path, as_json=False)
    made = ComparisonDirectory.open(path)
    runs = {(method, seed): Run(made.run_path(method, seed)) for method in algorithms for seed in numbers}
    return Comparison(path=path, page=made.table_path, results=made.results(), runs=runs)


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
    given = read_given(keys, overrides=overrides)
    words = given.words(of="a pipeline")
    if resume is not None:
        resume_pipeline(Path(resume), words, accept_changes=accept_changes)
        return PipelineRun(Path(resume))
    if recipe is None:
        raise UserError("nothing to run: name a recipe, e.g. whet.pipeline('rlhf-reviews'), or resume=DIRECTORY")
    written, name, where = read_source(recipe, name)
    found = validated(given.on(written), name=name, where=where)
    if not isinstance(found, Pipeline):
        raise UserError(f"{where} is a recipe of one run: use whet.train")
    return PipelineRun(train_pipeline(found, runs_root(root)))
