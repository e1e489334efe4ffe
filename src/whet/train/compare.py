"""Several methods × seeds of one recipe, one run after the other. Knows nothing of what their results mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from whet.algorithms.table import ALGORITHMS
from whet.config import OfflineConfig
from whet.errors import RunFailed, UserError
from whet.recipe import Config, Recipe, dump, nearest, parse_yaml, read_recipe
from whet.runs.comparison import ComparisonDirectory
from whet.runs.directory import Run
from whet.train.session import Progress
from whet.train.start import resume_run, start_run

State = Literal["new", "stopped", "finished"]
OURS = ("algorithm", "algorithm.preset", "seed")  # keys that a comparison itself sets


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run of a comparison."""

    method: str  # a preset
    seed: int
    overrides: tuple[str, ...]  # of the recipe, in the order in which they are applied
    recipe: Recipe


class Watch(Protocol):
    """Who is told how a comparison goes."""

    def begin(self, job: Job, state: State) -> None: ...

    def progress(self, config: Config, run: Run) -> Progress: ...

    def end(self, job: Job, run: Run | None, failure: str) -> None: ...


def read_jobs(
    source: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], changes: Sequence[str]
) -> list[Job]:
    """The runs to make, every recipe of them valid; `changes` are METHOD:KEY=VALUE, for that method alone.

    Seed by seed rather than method by method: stopped half-way, there is something to compare.
    """
    _check_methods(methods)
    for override in overrides:
        _check_override(override)
    _check_loop(source, overrides)
    own = _changes(changes, methods)
    return [_job(source, method, seed, (*overrides, *own[method])) for seed in seeds for method in methods]


def run_states(jobs: Sequence[Job], directory: ComparisonDirectory) -> list[State]:
    """What there is of each run already; a run that was made with another config is refused."""
    return [_state(job, directory.run(job.method, job.seed)) for job in jobs]


def run_jobs(jobs: Sequence[Job], directory: ComparisonDirectory, watch: Watch) -> dict[tuple[str, int], str]:
    """Makes the runs that are missing; (method, seed) → why, for those that failed.

    A run that fails does not stop the others; wrong input and Ctrl-C do, and the same call goes on from there.
    """
    failures: dict[tuple[str, int], str] = {}
    for job, state in zip(jobs, run_states(jobs, directory), strict=True):
        watch.begin(job, state)
        path = directory.run_path(job.method, job.seed)
        try:
            if state == "new":
                start_run(job.recipe, path.parent, watch.progress, path=path)
            elif state == "stopped":
                resume_run(path, [], watch.progress)
        except RunFailed as error:
            failures[job.method, job.seed] = str(error)
        watch.end(job, directory.run(job.method, job.seed), failures.get((job.method, job.seed), ""))
    return failures


def _check_methods(methods: Sequence[str]) -> None:
    for method in methods:
        if method not in ALGORITHMS:
            raise UserError(f"no method {method!r}{nearest(method, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
        if methods.count(method) > 1:
            raise UserError(f"method {method!r} comes twice in --methods; name it once")


def _check_override(override: str) -> None:
    key = override.partition("=")[0]
    if key in OURS:
        instead = "--seeds" if key == "seed" else "--methods"
        raise UserError(f"{override}: a comparison sets {key!r} itself; use {instead}")


def _check_loop(source: str, overrides: Sequence[str]) -> None:
    """Refuses a recipe that learns from rows; whatever else is wrong is said when a method's recipe is read."""
    config: Config | None = None
    with suppress(UserError):
        config = read_recipe(source, overrides).config
    if isinstance(config, OfflineConfig):
        raise UserError(
            f"recipe {source} is of the offline loop, which learns from rows; the methods of a comparison learn from "
            "rollouts: choose a recipe with `loop: online` (see `whet recipes`)"
        )


def _changes(changes: Sequence[str], methods: Sequence[str]) -> dict[str, list[str]]:
    own: dict[str, list[str]] = {method: [] for method in methods}
    for change in changes:
        method, colon, override = change.partition(":")
        if not colon or "=" in method:
            raise UserError(f"--set {change}: write METHOD:KEY=VALUE, e.g. grpo:update.epochs=2")
        if method not in own:
            raise UserError(f"--set {change}: {method!r} is not among the methods{nearest(method, methods)}")
        _check_override(override)
        own[method].append(override)
    return own


def _job(source: str, method: str, seed: int, overrides: Sequence[str]) -> Job:
    # First the preset: it replaces the recipe's whole algorithm, and what the user overrides of it comes on top.
    whole = (f"algorithm={method}", *overrides, f"seed={seed}")
    try:
        recipe = read_recipe(source, whole)
    except UserError as error:
        raise UserError(f"method {method}: {error}") from None
    return Job(method=method, seed=seed, overrides=whole, recipe=recipe)


def _state(job: Job, run: Run | None) -> State:
    if run is None:
        return "new"
    saved = dict(_values(parse_yaml(run.config_yaml(), where=str(run.path))))
    wanted = dict(_values(parse_yaml(dump(job.recipe.config), where=job.recipe.name)))
    different = [key for key in {**wanted, **saved} if wanted.get(key) != saved.get(key)]
    if different:
        key = different[0]
        raise UserError(
            f"{run.path} was made with another config ({key}: {saved.get(key)!r} there, {wanted.get(key)!r} here); "
            "repeat the command that it was made with, or choose another --out"
        )
    return "finished" if run.finished else "stopped"


def _values(section: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a config."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
