"""A pipeline: stages in order, then methods with every seed, then their comparison. One run at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config.loops import Acting
from whet.config.pipeline import CompareConfig, references, resolve_references
from whet.distributed.world import World
from whet.errors import RunFailed, UserError, nearest
from whet.recipe import Pipeline, Recipe, apply_override, dump, parse_yaml, plain, read_any, validate, validate_pipeline
from whet.runs.experiment_directories import PipelineDirectory, portable
from whet.tasks.loading import guarded_task
from whet.train.experiments.contest import run_contest
from whet.train.experiments.disk_room import require_room
from whet.train.experiments.jobs import ExperimentProgress, Method, PlannedRun, do_job, do_jobs, plan_run
from whet.train.experiments.sweep import check_methods
from whet.train.explain.explanation import disk_of_pipeline
from whet.train.setup.build import require_family


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The runs of a pipeline."""

    pipeline: Pipeline
    directory: PipelineDirectory
    stages: Mapping[str, PlannedRun]
    methods: Mapping[Method, PlannedRun]

    @property
    def jobs(self) -> list[PlannedRun]:
        return [*self.stages.values(), *self.methods.values()]


def chosen(
    source: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], *, runs: Path | None = None
) -> Pipeline:
    """The pipeline of a recipe, restricted to these methods and seeds; runs are looked up by name below `runs`."""
    found = read_any(source, overrides, runs=runs)
    if not isinstance(found, Pipeline):
        raise UserError(f"recipe {source} is not a pipeline")
    known = found.config.methods
    check_methods(methods)
    for method in methods:
        if method not in known:
            listed = ", ".join(known) or "none"
            raise UserError(f"recipe {source} has no method {method!r}{nearest(method, known)} (it has: {listed})")
    if found.config.compare is None:
        raise UserError(f"recipe {source} does not say how to compare its methods: add e.g. compare: {{start: '@sft'}}")
    # `shared` is merged into every run already, and may have keys for methods that are not chosen.
    changed = {"methods": {name: known[name] for name in methods}, "seeds": tuple(seeds), "shared": {}}
    return Pipeline(name=found.name, config=found.config.model_copy(update=changed), written=found.written)


def reopened(directory: PipelineDirectory, overrides: Sequence[str]) -> Pipeline:
    """The pipeline of a directory; overrides may change runs that have not begun."""
    where = str(directory.path)
    written = parse_yaml(directory.config_yaml(), where=where)
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] in {"shared", "seed"}:
            raise UserError(f"{override}: the runs of {where} have it already; change them, e.g. stages.NAME.KEY=VALUE")
        apply_override(written, override)
    return Pipeline(name=directory.recipe, config=validate_pipeline(written, where=where), written=written)


def make_plan(pipeline: Pipeline, directory: PipelineDirectory, *, accept_changes: bool = False) -> Plan:
    """The runs of a pipeline; refuses an existing run with another config or, unless accepted, changed input files.

    Methods go seed by seed: stopped half-way, all methods can be compared on the seeds so far.
    """
    recipes = [(recipe, recipe.config.seed) for recipe in pipeline.methods()]
    if pipeline.config.seeds:
        recipes = [(recipe, seed) for seed in pipeline.config.seeds for recipe, _ in recipes]

    def planned(label: str, recipe: Recipe, path: Path, seed: int | None = None) -> PlannedRun:
        placed = _placed(recipe, directory, seed=seed)
        assert not isinstance(placed.config, Acting)
        require_family(placed.config.model)
        return plan_run(label, placed, path, normalize=_portable, accept_changes=accept_changes)

    stages = {
        recipe.name: planned(f"stage {recipe.name}", recipe, directory.stage_path(recipe.name))
        for recipe in pipeline.stages()
    }
    methods = {
        (recipe.name, seed): planned(
            f"{recipe.name} seed {seed}", recipe, directory.method_path(recipe.name, seed), seed
        )
        for recipe, seed in recipes
    }
    plan = Plan(pipeline=pipeline, directory=directory, stages=stages, methods=methods)
    _refuse_stale(plan)
    return plan


def run_pipeline(
    plan: Plan, progress: ExperimentProgress, *, accept_changes: bool = False
) -> tuple[dict[Method, str], bool]:
    """Makes the missing runs and compares the methods; returns the errors of failed methods, and whether it compared.

    A failed stage ends the pipeline, a failed method does not stop the others; wrong input and Ctrl-C end it too. The
    same call continues from there.
    """
    uses = disk_of_pipeline(plan.pipeline)
    new = [f"stages.{name}" for name, job in plan.stages.items() if job.state == "new"]
    new += [f"methods.{name}" for (name, _), job in plan.methods.items() if job.state == "new"]
    require_room([uses[name] for name in new], plan.directory.path, progress.note)
    with plan.directory.writing(dump(plan.pipeline.config)):
        for job in plan.stages.values():
            failure = do_job(job, progress, accept_changes=accept_changes)
            if failure:
                raise RunFailed(f"{job.label}: {failure}")
        failures = do_jobs(plan.methods, progress, accept_changes=accept_changes)
        settings = plan.pipeline.config.compare
        compared = settings is not None and len(failures) < len(plan.methods)
        if settings is not None and compared:
            _compare(plan, settings, failures, progress)
    return failures, compared


def _placed(recipe: Recipe, directory: PipelineDirectory, *, seed: int | None) -> Recipe:
    """The recipe with `@name` replaced by paths, and with this seed."""
    values = _resolved(plain(recipe.config), directory)
    values |= {} if seed is None else {"seed": seed}
    return Recipe(name=recipe.name, config=validate(values, where=recipe.name), written=recipe.written)


def _resolved(values: Mapping[str, Any], directory: PipelineDirectory) -> dict[str, Any]:
    # Absolute: a run may be resumed from another working directory.
    found: dict[str, Any] = resolve_references(values, lambda name: str(directory.stage_path(name).absolute()))
    return found


def _refuse_stale(plan: Plan) -> None:
    """Refuses a run that exists although a stage it starts from is not finished: the stage was removed or replaced."""
    config = plan.pipeline.config
    made = [(job, config.stages[name]) for name, job in plan.stages.items()]
    made += [(job, config.methods[name]) for (name, _), job in plan.methods.items()]
    for job, written in made:
        for name in references(plain(written)) if job.state != "new" else ():
            if plan.stages[name].state != "finished":
                raise UserError(
                    f"{job.path} was made from stage {name}, but {plan.stages[name].path} is not finished: "
                    "restore that stage, or remove the runs that start from it"
                )


def _portable(value: Any) -> Any:
    """Paths inside the pipeline's directory without it: a pipeline may be moved."""
    return portable(value) if isinstance(value, str) else value


def _compare(plan: Plan, settings: CompareConfig, failures: Mapping[Method, str], progress: ExperimentProgress) -> None:
    config = plan.pipeline.config
    first = next(iter(plan.methods.values())).recipe.config
    assert not isinstance(first, Acting)
    placed = CompareConfig.model_validate(_resolved(settings.model_dump(mode="json"), plan.directory))
    run_contest(
        placed,
        guarded_task(first.task.name, first.task.options),
        {method: job.path for method, job in plan.methods.items() if method not in failures},
        plan.directory.comparison_path,
        device=World.init(first.device).device,
        seed=config.seed,
        title=plan.pipeline.name,
        failures=failures,
        note=progress.note,
    )
