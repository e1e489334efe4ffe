"""Runs that are made one after the other: what there is of each already, and making what is missing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from whet.errors import RunFailed, UserError
from whet.recipe import Config, Recipe, parse_yaml, plain
from whet.runs.directory import Run
from whet.train.session.inputs import changed_inputs
from whet.train.session.session import Progress
from whet.train.start import lacks_report, resume_run, start_run

State = Literal["new", "stopped", "finished"]
Method = tuple[str, int]  # name and seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run among several."""

    label: str  # what to call it
    recipe: Recipe
    path: Path

    @property
    def run(self) -> Run | None:
        """The run, to read; None before it was begun."""
        return Run.find(self.path)


class Watch(Protocol):
    """Who is told how it goes."""

    def begin(self, label: str, state: State) -> None: ...

    def progress(self, config: Config, run: Run) -> Progress: ...

    def end(self, run: Run | None, failure: str) -> None: ...

    def say(self, text: str) -> None: ...


def job_state(job: Job, *, same: Callable[[Any], Any] = lambda value: value, accept_changes: bool = False) -> State:
    """What there is of a run; one that was made with another config is refused, `same` says what is not another.

    So is one that is finished and was made from files that have changed since, unless that is accepted: what stands
    beside it would be made from others.
    """
    run = job.run
    if run is None:
        return "new"
    saved = dict(_values(parse_yaml(run.config_yaml(), where=str(run.path))))
    wanted = dict(_values(plain(job.recipe.config)))
    different = [key for key in {**wanted, **saved} if same(wanted.get(key)) != same(saved.get(key))]
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


def do_job(job: Job, state: State, watch: Watch, *, accept_changes: bool = False) -> str:
    """Makes a run, goes on with it, or leaves it as it is; returns why it failed, nothing when it did not."""
    watch.begin(job.label, state)
    failure = ""
    try:
        if state == "new":
            start_run(job.recipe, job.path.parent, watch.progress, path=job.path)
        elif state == "stopped" or (job.run is not None and lacks_report(job.recipe.config, job.run)):
            resume_run(job.path, [], watch.progress, accept_changes=accept_changes, say=watch.say)
        elif accept_changes and job.run is not None:
            for change in changed_inputs(job.recipe.config, job.run):
                watch.say(f"accepted: {job.label} is left as it was made, though {change.sentence}")
    except RunFailed as error:
        failure = str(error)
    except UserError as error:
        raise UserError(f"{job.label}: {error}") from error
    gc.collect()  # models that refer to themselves would stay beside those of the next run
    watch.end(job.run, failure)
    return failure


def do_jobs(
    jobs: Mapping[Method, Job], states: Sequence[State], watch: Watch, *, accept_changes: bool = False
) -> dict[Method, str]:
    """Makes what is missing of several runs; (method, seed) → why, for those that failed.

    A run that fails does not stop the others; wrong input and Ctrl-C do, and the same call goes on from there.
    """
    ends = {
        method: do_job(job, state, watch, accept_changes=accept_changes)
        for (method, job), state in zip(jobs.items(), states, strict=True)
    }
    return {method: failure for method, failure in ends.items() if failure}


def _values(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a config."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
