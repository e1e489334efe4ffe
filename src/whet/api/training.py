"""`whet.train`: a recipe from Python, with functions, tasks and rows in place of files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from whet.api.given import Given, RecipeSource, Reward, StrPath, read_given, read_source, rows_key
from whet.api.run import Run
from whet.cli.progress import SilentProgress, make_progress
from whet.errors import UserError
from whet.imports import passing
from whet.recipe import Config, Pipeline, parse_yaml, validate, validated
from whet.runs import layout
from whet.runs.catalogue import find_run, runs_root
from whet.runs.directory import RunDirectory
from whet.train.session.callbacks import Progress
from whet.train.session.extension import MAY_CHANGE, as_overrides, changed_keys
from whet.train.start import resume_run, saved_config, start_run

OnStep = Callable[[int, Mapping[str, float]], object]
_trained: list[bool] = []  # not empty once this process has trained


def train(  # noqa: PLR0913 - arguments that cannot be keys of a recipe
    recipe: RecipeSource | None = None,
    *,
    rewards: Reward | Sequence[Reward] | None = None,
    data: Any = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    root: StrPath | None = None,
    directory: StrPath | None = None,
    name: str | None = None,
    resume: StrPath | None = None,
    accept_changes: bool = False,
    progress: bool = True,
    on_step: OnStep | None = None,
    **keys: Any,
) -> Run:
    """Trains a recipe and returns its `Run`.

    `recipe` is a packaged name, a YAML file or a dict. Further keywords are its keys: `steps=50`, `lr=1e-4`,
    `rollout={"prompts": 8}`; dotted keys go into `overrides={"rollout.prompts": 8}`. A dict that gives the name of its
    section (a task's `name`, an algorithm's `preset`) replaces that section; any other dict is merged into it.

    `rewards` are functions, `(function, weight)` or `"file.py:function"`; `task` may be an object, cells of `algorithm`
    functions, `model` a path or a `Run`, `data` a path or a list of dicts, which is written into the run directory.

    The run directory is created below `root` (default: $WHET_RUNS, else runs), or is exactly `directory`. `resume`
    continues a stopped run, bit for bit; objects must be passed again.

    `on_step(step, metrics)` is called after every step. If it returns False or raises StopIteration, the run is saved
    and returned unfinished; on KeyboardInterrupt or Ctrl-C it is saved, and KeyboardInterrupt is raised.
    """
    given = read_given(keys, rewards, overrides, data)
    watch = _Watch(progress, on_step)
    with passing(given.objects):
        if resume is not None:
            if recipe is not None:
                raise UserError(f"resume continues {os.fspath(resume)}, which has its own recipe: leave {recipe!r} out")
            path = find_run(os.fspath(resume), runs_root(root)) or Path(resume).expanduser()
            return _resumed(path, given, watch, accept_changes=accept_changes)
        if recipe is None:
            raise UserError("nothing to train: name a recipe, e.g. whet.train('grpo-sorting'), or resume=RUN")
        if accept_changes:
            raise UserError("accept_changes is for a resumed run: add resume=RUN, or leave it out")
        return _started(recipe, given, watch, root=runs_root(root), directory=directory, name=name)


@contextmanager
def reserved(root: Path, name: str, exact: StrPath | None) -> Iterator[Path]:
    """A new directory, or exactly that one; on wrong input a new directory that is still empty is removed."""
    path = layout.fresh_directory(root, name) if exact is None else Path(exact).expanduser()
    try:
        yield path
    except UserError:
        with suppress(OSError):  # not empty, or does not exist
            if exact is None:
                path.rmdir()
        raise


class _Watch:
    """Progress display of a run that also calls `on_step`."""

    def __init__(self, shown: bool, on_step: OnStep | None) -> None:
        if on_step is not None and not callable(on_step):
            raise UserError(f"on_step is a {type(on_step).__name__}, not a function of step and metrics")
        self.shown, self.on_step = shown, on_step
        self.asks = on_step is not None and os.environ.get("RANK", "0") == "0"
        self.asked_to_stop = on_step is not None and not self.asks  # other ranks: rank 0 decides
        self.path: Path | None = None
        self._inner: Progress = SilentProgress()

    def progress(self, config: Config, run: RunDirectory) -> Progress:
        self.path = run.path
        self._inner = make_progress(config, run) if self.shown else SilentProgress()
        return self

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> bool | None:
        """Shows the step; returns False to stop after it."""
        self._inner.step(step, metrics, timings)
        if self.on_step is None or not self.asks:
            return None
        try:
            self.asked_to_stop = self.on_step(step, dict(metrics)) is False
        except StopIteration:
            self.asked_to_stop = True
        except KeyboardInterrupt:
            return False
        return not self.asked_to_stop

    def evaluating(self) -> AbstractContextManager[None]:
        return self._inner.evaluating()

    def note(self, text: str) -> None:
        self._inner.note(text)

    def close(self) -> None:
        self._inner.close()

    def run(self, work: Callable[[], Path], objects: Mapping[str, object]) -> Run:
        """Trains. A run stopped by `on_step` is returned; Ctrl-C raises KeyboardInterrupt."""
        if os.environ.get("WORLD_SIZE", "1") != "1" and _trained:
            raise UserError("under torchrun a process can train once: call whet.train once in each, and start again")
        _trained.append(True)
        try:
            return Run(work(), objects=objects)
        except KeyboardInterrupt:
            if not self.asked_to_stop or self.path is None:
                raise
            return Run(self.path, objects=objects)


def _started(
    source: RecipeSource, given: Given, watch: _Watch, *, root: Path, directory: StrPath | None, name: str | None
) -> Run:
    written, name, where = read_source(source, name)
    exact = None if directory is None else Path(directory).expanduser()
    # With rows, their path must be known before the recipe is validated.
    with reserved(root, name, directory) if given.rows else nullcontext(exact) as path:
        recipe = validated(given.on(written, path if given.rows else None), name=name, where=where, runs=root)
        if isinstance(recipe, Pipeline):
            raise UserError(f"{where} is a pipeline of several runs: use whet.pipeline")
        rows = {rows_key(written): given.rows} if given.rows else {}
        return watch.run(lambda: start_run(recipe, root, watch.progress, path=path, given=rows), given.objects)


def _resumed(path: Path, given: Given, watch: _Watch, *, accept_changes: bool) -> Run:
    """Continues a run. Keys may be passed again, unchanged: this is how objects are passed again."""
    if given.rows is not None:
        raise UserError("data: a resumed run has its rows in its directory: leave data out")
    before = RunDirectory.open(path, is_writer=False)
    saved, written = saved_config(before), parse_yaml(before.config_yaml(), where=str(path))
    changes = changed_keys(saved, validate(given.on(written), where=str(path)))
    for key, (value, now) in changes.items():
        if key not in MAY_CHANGE:
            raise UserError(
                f"{key}: a resumed run keeps its config, and this differs ({now} instead of {value}); to "
                f"change it, start a new run with model={str(path)!r}"
            )
    words = as_overrides({key: values for key, values in changes.items() if values[1] is not None})
    return watch.run(lambda: resume_run(path, words, watch.progress, accept_changes=accept_changes), given.objects)
