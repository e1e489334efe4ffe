"""Starting and resuming: the world, the run directory, the right loop, and the report at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from whet.config import OfflineConfig
from whet.config.collecting import CollectConfig
from whet.distributed.world import RankLost, World
from whet.errors import UserError
from whet.recipe import Config, Recipe, dump, parse_yaml, plain, validate
from whet.report.page import write_report
from whet.runs.directory import Run
from whet.train import offline, online
from whet.train.gather import collect
from whet.train.inert import keys_without_effect
from whet.train.session import Progress

MakeProgress = Callable[[Config, Run], Progress]


def start_run(recipe: Recipe, root: Path, make_progress: MakeProgress, *, path: Path | None = None) -> Path:
    """Trains a recipe in a new run directory below `root` (or at exactly `path`); returns the directory.

    A run that Ctrl-C stopped is saved and ends in KeyboardInterrupt, so that nothing goes on as if it were finished.
    """
    world = World.init(recipe.config.device)
    try:
        _check(recipe.config, world, resumed="")
        run = _on_every_rank(world, lambda: Run.create(root, recipe.name, dump(recipe.config), path=path))
        try:
            idle = keys_without_effect(recipe)
            notes = [f"note: {key} has no effect here: {why}" for key, why in idle.items()]
            with _way_back(run):
                return _train(recipe.config, run, world, make_progress, notes)
        except UserError:
            run.remove_if_unused()
            raise
    finally:
        world.close()


def resume_run(path: Path, overrides: Sequence[str], make_progress: MakeProgress) -> Path:
    """Goes on with a stopped run, with its own config."""
    if overrides:
        raise UserError(
            f"{' '.join(overrides)}: a resumed run keeps its config; to change it, start a new run with model={path}"
        )
    saved = Run.open(path, is_writer=False).config_yaml()
    config = validate(parse_yaml(saved, where=str(path)), where=f"{path}/config.yaml")
    world = World.init(config.device)
    try:
        _check(config, world, resumed=str(path.resolve()))
        run = _on_every_rank(world, lambda: Run.open(path))
        if run.finished:
            raise UserError(f"{path} is finished; to train on, start a new run with model={path}")
        with _way_back(run):
            return _train(config, run, world, make_progress)
    finally:
        world.close()


def _check(config: Config, world: World, *, resumed: str) -> None:
    """Ends every rank, before anything is written, when they cannot train together."""
    world.require_same({**plain(config), "--resume": resumed}, "start all ranks with the same command and recipe")
    share = config.rows if isinstance(config, OfflineConfig) else config.rollout.prompts
    if share < world.size:
        raise UserError(f"{share} prompts or rows a step cannot be shared by {world.size} processes: raise the number")


def _on_every_rank(world: World, make: Callable[[], Run]) -> Run:
    """The writer makes or opens the run; the others look at the same directory."""
    run = make() if world.is_writer else None
    path = world.gather(str(run.path) if run else "")[0]
    return run or Run.open(Path(path), is_writer=False)


def _train(config: Config, run: Run, world: World, make_progress: MakeProgress, notes: Sequence[str] = ()) -> Path:
    with run:
        with closing(make_progress(config, run)) as progress:
            for note in notes:
                progress.note(note)
            match config:
                case OfflineConfig():
                    offline.train(config, run, world, progress)
                case CollectConfig():
                    collect(config, run, world, progress)
                case _:
                    online.train(config, run, world, progress)
        if world.is_writer:
            if not isinstance(config, CollectConfig):
                write_report(run.path)
            if run.finished and not isinstance(config, CollectConfig):
                progress.note(f"report: {run.report_path}")
            elif not run.finished:
                progress.note(f"stopped; go on with: whet train {run.path} --resume")
        _leave(run, world)
    return run.path


def _leave(run: Run, world: World) -> None:
    """Lets the ranks end together; a rank that is lost after the end takes nothing with it."""
    try:
        world.barrier()
    except RankLost:
        if not run.finished:
            raise
    if not run.finished:
        raise KeyboardInterrupt


@contextmanager
def _way_back(run: Run) -> Iterator[None]:
    """Says how to go on after the loss of another process."""
    try:
        yield
    except RankLost as error:
        raise RankLost(f"{error}; go on with: whet train {run.path} --resume, in as many processes") from error
