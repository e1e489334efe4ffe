"""Several runs in a row: which are finished or stopped already, and making the missing ones."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.errors import RunFailed, UserError
from whet.recipe import Config, Recipe, parse_yaml, plain
from whet.runs.directory import RunDirectory
from whet.train.session.callbacks import Progress
from whet.train.session.extension import dotted
from whet.train.session.input_files import changed_inputs
from whet.train.start import lacks_report, resume_run, start_run

State = Literal["new", "stopped", "finished"]
Method = tuple[str, int]  # name and seed


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of an experiment."""

    label: str
    recipe: Recipe
    path: Path
    state: State  # when the experiment was started

    @property
    def run(self) -> RunDirectory | None:
        """The run, for reading; None before it was started."""
        return RunDirectory.find(self.path)


class ExperimentProgress(Protocol):
    """Progress callbacks of several runs."""

    def begin(self, label: str, state: State) -> None: ...

    def progress(self, config: Config, run: RunDirectory) -> Progress: ...

    def end(self, run: RunDirectory | None, failure: str) -> None: ...

    def note(self, text: str) -> None: ...


def plan_run(
    label: str,
    recipe: Recipe,
    path: Path,
    *,
    normalize: Callable[[Any], Any] = lambda value: value,
    accept_changes: bool = False,
) -> PlannedRun:
    """A run that is new, stopped or finished. Refuses one with another config, compared after `normalize`.

    Also refuses a finished run whose input files have changed since, unless accepted: the other runs of the experiment
    would be trained on different files.
    """
    run = RunDirectory.find(path)
    if run is None:
        return PlannedRun(label=label, recipe=recipe, path=path, state="new")
    saved = dict(dotted(parse_yaml(run.config_yaml(), where=str(run.path))))
    wanted = dict(dotted(plain(recipe.config)))
    different = [key for key in {**wanted, **saved} if normalize(wanted.get(key)) != normalize(saved.get(key))]
    if different:
        key = different[0]
        raise UserError(
            f"{run.path} was made with another config ({key}: {saved.get(key)!r} there, {wanted.get(key)!r} here); "
            "remove that run, repeat the command that it was made with, or choose another --out"
        )
    changed = changed_inputs(recipe.config, run) if run.finished and not accept_changes else []
    if changed:
        raise UserError(
            f"{run.path} is finished, and {changed[0].sentence}: put back what it was made from, or remove that run"
        )
    return PlannedRun(label=label, recipe=recipe, path=path, state="finished" if run.finished else "stopped")


def do_job(job: PlannedRun, progress: ExperimentProgress, *, accept_changes: bool = False) -> str:
    """Starts or resumes a run, or leaves a finished one alone; returns the error of a failed run, else ""."""
    progress.begin(job.label, job.state)
    failure = ""
    try:
        if job.state == "new":
            start_run(job.recipe, job.path.parent, progress.progress, path=job.path)
        elif job.state == "stopped" or (job.run is not None and lacks_report(job.recipe.config, job.run)):
            resume_run(job.path, [], progress.progress, accept_changes=accept_changes, say=progress.note)
        elif accept_changes and job.run is not None:
            for change in changed_inputs(job.recipe.config, job.run):
                progress.note(f"accepted: {job.label} is left as it was made, though {change.sentence}")
    except RunFailed as error:
        failure = str(error)
    except UserError as error:
        raise UserError(f"{job.label}: {error}") from error
    gc.collect()  # models in reference cycles would stay in memory during the next run
    progress.end(job.run, failure)
    return failure


def do_jobs(
    jobs: Mapping[Method, PlannedRun], progress: ExperimentProgress, *, accept_changes: bool = False
) -> dict[Method, str]:
    """Makes the missing runs; returns the errors of failed ones by (method, seed).

    A failed run does not stop the others; wrong input and Ctrl-C do, and the same call continues from there.
    """
    ends = {method: do_job(job, progress, accept_changes=accept_changes) for method, job in jobs.items()}
    return {method: failure for method, failure in ends.items() if failure}
