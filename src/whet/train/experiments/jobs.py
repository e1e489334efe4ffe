"""Several runs in a row: which are finished or stopped already, and making the missing ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.errors import RunFailed, UserError
from whet.recipe import Config, Recipe, parse_yaml, plain
from whet.runs.directory import RunDirectory
from whet.train.session.input_files import changed_inputs
from whet.train.session.session import Progress
from whet.train.start import lacks_report, resume_run, start_run

State = Literal["new", "stopped", "finished"]
Method = tuple[str, int]  # name and seed


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run of an experiment."""

    label: str
    recipe: Recipe
    path: Path

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


def job_state(
    job: PlannedRun, *, normalize: Callable[[Any], Any] = lambda value: value, accept_changes: bool = False
) -> State:
    """Whether a run is new, stopped or finished. Refuses one with another config, compared after `normalize`.

    Also refuses a finished run whose input files have changed since, unless accepted: the other runs of the experiment
    would be trained on different files.
    """
    run = job.run
    if run is None:
        return "new"
    saved = dict(_values(parse_yaml(run.config_yaml(), where=str(run.path))))
    wanted = dict(_values(plain(job.recipe.config)))
    different = [key for key in {**wanted, **saved} if normalize(wanted.get(key)) != normalize(saved.get(key))]
    if different:
        key = different[0]
        raise UserError(
            f"{run.path} was made with another config ({key}: {saved.get(key)!r} there, {wanted.get(key)!r} here); "
            "remove that run, repeat the command that it was made with, or choose another --out"
        )
    if not run.finished:
        return "stopped"
    changed = [] if accept_changes else changed_inputs(job.recipe.config, run)
    if changed:
        raise UserError(
            f"{run.path} is finished, and {changed[0].sentence}: put back what it was made from, or remove that run"
        )
    return "finished"


def do_job(job: PlannedRun, state: State, progress: ExperimentProgress, *, accept_changes: bool = False) -> str:
    """Starts or resumes a run, or leaves a finished one alone; returns the error of a failed run, else ""."""
    progress.begin(job.label, state)
    failure = ""
    try:
        if state == "new":
            start_run(job.recipe, job.path.parent, progress.progress, path=job.path)
        elif state == "stopped" or (job.run is not None and lacks_report(job.recipe.config, job.run)):
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
    jobs: Mapping[Method, PlannedRun],
    states: Sequence[State],
    progress: ExperimentProgress,
    *,
    accept_changes: bool = False,
) -> dict[Method, str]:
    """Makes the missing runs; returns the errors of failed ones by (method, seed).

    A failed run does not stop the others; wrong input and Ctrl-C do, and the same call continues from there.
    """
    ends = {
        method: do_job(job, state, progress, accept_changes=accept_changes)
        for (method, job), state in zip(jobs.items(), states, strict=True)
    }
    return {method: failure for method, failure in ends.items() if failure}


def _values(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every setting of a config."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
