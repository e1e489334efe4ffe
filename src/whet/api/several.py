"""`whet.compare` and `whet.pipeline`: several runs, made and shown as the commands do."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.api.given import RecipeSource, StrPath, read_given, read_source
from whet.api.run import Run
from whet.api.training import reserved
from whet.cli.experiments import compare_methods, read_seeds, resume_pipeline, train_pipeline
from whet.errors import UserError
from whet.recipe import Pipeline, validated, written_recipe
from whet.runs.catalogue import runs_root
from whet.runs.experiment_directories import ComparisonDirectory, PipelineDirectory, is_comparison


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Result of `whet.compare`: several algorithms × seeds."""

    path: Path  # directory
    page: Path  # comparison.md: verdict, table and curves
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
        """The runs so far, by their path in the directory: stages/NAME, methods/NAME/seed-N."""
        return {str(run.relative_to(self.path)): Run(run) for run in PipelineDirectory(self.path).runs()}

    @property
    def results(self) -> dict[str, Any] | None:
        """comparison.json; None where the recipe compares nothing, or before the comparison."""
        path = PipelineDirectory(self.path).comparison_path
        return ComparisonDirectory(path).results() if is_comparison(path) else None


def compare(
    recipe: StrPath,
    *,
    algorithms: Sequence[str],
    seeds: int | Sequence[int] = 3,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: StrPath | None = None,
    directory: StrPath | None = None,
    target: float | None = None,
    **keys: Any,
) -> Comparison:
    """Trains a recipe with each algorithm (a preset) and seed, and compares them; keywords override the recipe.

    Functions and tasks must be named by file: each run can be resumed by itself. `directory` is the exact directory; a
    comparison that was begun there is continued. `target` is the value of the column "steps to"; 0.8 of a
    share, unless it is given.
    """
    if isinstance(algorithms, str):
        algorithms = algorithms.split(",")
    if not isinstance(recipe, str | os.PathLike):
        raise UserError("whet.compare reads its recipe by name, a packaged one or a YAML file: each run reads it again")
    numbers = read_seeds(str(seeds) if isinstance(seeds, int) else "".join(f"{seed}," for seed in seeds))
    words = read_given(keys, overrides=overrides).words(of="a comparison")
    source, parent = os.fspath(recipe), runs_root(root)
    with reserved(parent, f"compare-{written_recipe(source)[1]}", directory) as path:
        made = compare_methods(source, algorithms, numbers, words, target=target, root=parent, out=path)
    runs = {(method, seed): Run(made.run_path(method, seed)) for method in algorithms for seed in numbers}
    return Comparison(path=made.path, page=made.table_path, results=made.results(), runs=runs)


def pipeline(
    recipe: RecipeSource | None = None,
    *,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: StrPath | None = None,
    name: str | None = None,
    resume: StrPath | None = None,
    accept_changes: bool = False,
    **keys: Any,
) -> PipelineRun:
    """Runs a pipeline in a new directory below `root`, or continues one; keywords override its recipe.

    `stages={"sft": {"steps": 100}}` changes one stage. Functions and tasks must be named by file, because each run of a
    pipeline can be resumed by itself.
    """
    given = read_given(keys, overrides=overrides)
    words = given.words(of="a pipeline")
    if resume is not None:
        resume_pipeline(Path(resume), words, accept_changes=accept_changes)
        return PipelineRun(Path(resume))
    if recipe is None:
        raise UserError("nothing to run: name a recipe, e.g. whet.pipeline('rlhf-reviews'), or resume=DIRECTORY")
    written, name, where = read_source(recipe, name)
    found = validated(given.on(written), name=name, where=where, runs=runs_root(root))
    if not isinstance(found, Pipeline):
        raise UserError(f"{where} is a recipe of one run: use whet.train")
    return PipelineRun(train_pipeline(found, runs_root(root)))
