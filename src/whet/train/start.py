"""Starts and resumes a run: process group, run directory, loop, report."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.config import OfflineConfig, OnlineConfig
from whet.config.control import ControlConfig
from whet.config.control.off_policy import OffPolicyConfig
from whet.config.loops import Acting, CollectConfig
from whet.distributed.world import RankLost, World
from whet.errors import UserError
from whet.imports import is_object
from whet.recipe import Config, Recipe, dump, parse_yaml, plain, validate
from whet.report.run.page import outcome_lines, write_report
from whet.runs.directory import RunDirectory
from whet.runs.interrupt import Stopped
from whet.runs.recorded_inputs import Inputs
from whet.tasks.grading.process import withheld
from whet.train.control import loop as control
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.off_policy import loop as off_policy
from whet.train.online import loop as online
from whet.train.online.rollouts import require_pool
from whet.train.rows import loop as offline
from whet.train.rows.collect import collect
from whet.train.session.callbacks import Progress
from whet.train.session.extension import extended, record_extension
from whet.train.session.input_files import compare_inputs, current_inputs
from whet.train.session.resume import how_to_resume
from whet.train.setup.epochs import with_steps
from whet.train.setup.rollout_memory import refuse_rollouts_beyond_memory
from whet.user_code import OutputLog, keeping_output

MakeProgress = Callable[[Config, RunDirectory], Progress]
Rows = Sequence[Mapping[str, Any]]


def start_run(
    recipe: Recipe,
    root: Path,
    make_progress: MakeProgress,
    *,
    path: Path | None = None,
    given: Mapping[str, Rows] | None = None,
) -> Path:
    """Trains a recipe in a new run directory below `root` (or exactly `path`); returns the directory.

    `given` are rows to write into the directory, by the key of the recipe that names their file. A run stopped by
    Ctrl-C is saved and raises KeyboardInterrupt, so that callers do not take it for finished.
    """
    world = World.init(recipe.config.device)
    try:
        recipe = replace(recipe, config=with_steps(recipe.config))
        world = _checked(recipe.config, world, resumed="")
        large = refuse_rollouts_beyond_memory(recipe.config)
        run = _on_every_rank(world, lambda: RunDirectory.create(root, recipe.name, dump(recipe.config), path=path))
        try:
            for key, rows in (given or {}).items():
                run.write_rows(rows, key)
            if world.is_writer:
                run.write_inputs(Inputs(known=current_inputs(recipe.config, run.path)))
            idle = keys_without_effect(recipe)
            notes = [f"note: {key} has no effect here: {why}" for key, why in idle.items()]
            notes += [*_hidden_from_rewards(recipe.config), *filter(None, [large])]
            with _way_back(run):
                return _train(recipe.config, run, world, make_progress, notes)
        except UserError:
            run.remove_if_unused()
            raise
    finally:
        world.close()


def resume_run(
    path: Path,
    overrides: Sequence[str],
    make_progress: MakeProgress,
    *,
    accept_changes: bool = False,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Resumes a stopped run with its config and inputs; changed inputs are refused unless accepted.

    Overrides may extend it, also when it is finished (`extension.MAY_CHANGE`). Notes on accepted changes go to `say`,
    else to the progress display.
    """
    before = RunDirectory.open(path, is_writer=False)
    saved = saved_config(before)
    config = extended(before, saved, overrides)
    world = World.init(config.device)
    try:
        world = _checked(config, world, resumed=str(path.resolve()))
        run = _on_every_rank(world, lambda: RunDirectory.open(path))
        with run:
            if config == saved and lacks_report(config, run):
                return _report(config, run, world, make_progress)
            if config.steps == saved.steps and run.finished:
                raise UserError(f"{path} is finished; {_how_to_extend(config, run)}")
            notes: list[str] = []
            told = say or notes.append
            compare_inputs(saved, run, world, accept_changes=accept_changes, note=told, overrides=overrides)
            notes += record_extension(run, saved, config)
            with _way_back(run):
                return _train(config, run, world, make_progress, notes)
    finally:
        world.close()


def saved_config(run: RunDirectory) -> Config:
    """The config of an existing run."""
    return validate(parse_yaml(run.config_yaml(), where=str(run.path)), where=f"{run.path}/config.yaml")


def lacks_report(config: Config, run: RunDirectory) -> bool:
    """Whether a run was killed between its last step and its report."""
    return run.finished and not run.has_report and not isinstance(config, CollectConfig)


def is_complete(run: RunDirectory) -> bool:
    """Whether a run has made its last step and has its report: there is nothing to resume."""
    return run.finished and not lacks_report(saved_config(run), run)


def _how_to_extend(config: Config, run: RunDirectory) -> str:
    """How to train on after a run is finished."""
    anew = f"start a new run with model={run.path}"
    if isinstance(config, CollectConfig) or "ended" in (run.results() or {}):
        return f"to train on, {anew}"
    if isinstance(config, Acting):
        return f"to train for longer: {how_to_resume(run.path, overrides=[f'steps={2 * config.steps}'])}"
    return f"to train for longer: {how_to_resume(run.path, overrides=[f'steps={2 * config.steps}'])}, or {anew}"


def _report(config: Config, run: RunDirectory, world: World, make_progress: MakeProgress) -> Path:
    """Writes the missing report of a finished run."""
    with closing(make_progress(config, run)) as progress:
        if world.is_writer:
            progress.note(f"the run is finished and had no report; report: {write_report(run.path)}")
        world.barrier()
    return run.path


def _hidden_from_rewards(config: Config) -> list[str]:
    """A note on environment variables that are withheld from reward functions."""
    if isinstance(config, OfflineConfig | Acting) or not config.reward.functions:
        return []
    if any(is_object(function.use) for function in config.reward.functions):  # objects run in this process
        return []
    hidden = withheld(os.environ, config.reward.environment)
    look = "looks like a secret: name it" if len(hidden) == 1 else "look like secrets: name those that they need"
    told = f"note: reward functions do not see {', '.join(hidden)}, which {look} in reward.environment"
    return [told + " if they need it" * (len(hidden) == 1)] if hidden else []


def _checked(config: Config, world: World, *, resumed: str) -> World:
    """Refuses configs that differ between ranks or give a rank no rows, before anything is written.

    Returns the world that holds models as the config says.
    """
    world.require_same({**plain(config), "--resume": resumed}, "start all ranks with the same command and recipe")
    if isinstance(config, Acting):
        return world
    share = config.batch_size if isinstance(config, OfflineConfig) else config.rollout.prompts
    if share < world.size:
        raise UserError(f"{share} prompts or rows a step cannot be shared by {world.size} processes: raise the number")
    if isinstance(config, CollectConfig):
        return world
    if isinstance(config, OnlineConfig) and config.asynchronous is not None:
        require_pool(config.asynchronous, config.engine)
    how = config.distributed
    return world.sharded(how.sharding, replicas=how.replicas, cpu_offload=how.cpu_offload)


def _on_every_rank(world: World, make: Callable[[], RunDirectory]) -> RunDirectory:
    """The writer creates or opens the run; other ranks open the same directory."""
    run = make() if world.is_writer else None
    path = world.gather(str(run.path) if run else "")[0]
    return run or RunDirectory.open(Path(path), is_writer=False)


def _train(
    config: Config, run: RunDirectory, world: World, make_progress: MakeProgress, notes: Sequence[str] = ()
) -> Path:
    progress = make_progress(config, run)
    with run, _output_kept(run, world, progress):
        with closing(progress):
            for note in notes:
                progress.note(note)
            with suppress(Stopped):
                _run_loop(config, run, world, progress)
        if world.is_writer:
            if not isinstance(config, CollectConfig) and run.metrics():
                write_report(run.path)
            if run.finished and not isinstance(config, CollectConfig):
                for line in outcome_lines(run):
                    progress.note(line)
                progress.note(f"finished; {_how_to_extend(config, run)}")
                progress.note(f"report: {run.report_path}")
            elif not run.finished:
                many = ", in as many processes" if world.size > 1 else ""
                progress.note(f"stopped; continue with: {how_to_resume(run.path)}{many}")
        _leave(run, world)
    return run.path


def _run_loop(config: Config, run: RunDirectory, world: World, progress: Progress) -> None:
    match config:
        case OfflineConfig():
            offline.train(config, run, world, progress)
        case ControlConfig():
            control.train(config, run, world, progress)
        case OffPolicyConfig():
            off_policy.train(config, run, world, progress)
        case CollectConfig():
            collect(config, run, world, progress)
        case _:
            online.train(config, run, world, progress)


@contextmanager
def _output_kept(run: RunDirectory, world: World, progress: Progress) -> Iterator[None]:
    """What reward functions and tasks print goes to a log, which is named at the end."""
    with keeping_output(run.output_path(world.rank)) as log:
        try:
            yield
        except UserError:  # may remove the run
            raise
        except BaseException:
            _name_output(log, progress)
            raise
        _name_output(log, progress)


def _name_output(log: OutputLog, progress: Progress) -> None:
    if log.path.exists():
        progress.note(f"what reward functions and tasks printed: {log.path}")


def _leave(run: RunDirectory, world: World) -> None:
    """Waits for all ranks; a rank lost after the run is finished is ignored. Raises KeyboardInterrupt if stopped."""
    try:
        world.barrier()
    except RankLost:
        if not run.finished:
            raise
    if not run.finished:
        raise KeyboardInterrupt


@contextmanager
def _way_back(run: RunDirectory) -> Iterator[None]:
    """Adds how to resume to the error of a lost rank."""
    try:
        yield
    except RankLost as error:
        raise RankLost(f"{error}; continue with: {how_to_resume(run.path)}, in as many processes") from error
