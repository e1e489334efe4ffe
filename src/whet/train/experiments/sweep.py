"""Several methods × seeds of one recipe, one run after the other. Knows nothing of what their results mean."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from whet.algorithms.table import ALGORITHMS
from whet.config import OnlineConfig
from whet.errors import UserError
from whet.recipe import Config, Recipe, nearest, read_recipe
from whet.runs.comparison_directory import ComparisonDirectory
from whet.train.experiments.jobs import Job, State, Watch, do_job, job_state

OURS = ("algorithm", "algorithm.preset", "seed")  # keys that a comparison itself sets


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One run of a comparison."""

    method: str  # a preset
    seed: int
    overrides: tuple[str, ...]  # of the recipe, in the order in which they are applied
    recipe: Recipe

    @property
    def label(self) -> str:
        """What to call it."""
        return f"{self.method} seed {self.seed}"


def read_trials(
    source: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], changes: Sequence[str]
) -> list[Trial]:
    """The runs to make, every recipe of them valid; `changes` are METHOD:KEY=VALUE, for that method alone.

    Seed by seed rather than method by method: stopped half-way, there is something to compare.
    """
    _check_methods(methods)
    for override in overrides:
        _check_override(override)
    _check_loop(source, overrides)
    own = _changes(changes, methods)
    return [_trial(source, method, seed, (*overrides, *own[method])) for seed in seeds for method in methods]


def run_states(trials: Sequence[Trial], directory: ComparisonDirectory) -> list[State]:
    """What there is of each run already; a run that was made with another config is refused."""
    return [job_state(_job(trial, directory)) for trial in trials]


def run_trials(trials: Sequence[Trial], directory: ComparisonDirectory, watch: Watch) -> dict[tuple[str, int], str]:
    """Makes the runs that are missing; (method, seed) → why, for those that failed.

    A run that fails does not stop the others; wrong input and Ctrl-C do, and the same call goes on from there.
    """
    failures: dict[tuple[str, int], str] = {}
    for trial, state in zip(trials, run_states(trials, directory), strict=True):
        failure = do_job(_job(trial, directory), state, watch)
        if failure:
            failures[trial.method, trial.seed] = failure
    return failures


def _job(trial: Trial, directory: ComparisonDirectory) -> Job:
    return Job(label=trial.label, recipe=trial.recipe, path=directory.run_path(trial.method, trial.seed))


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
    if config is not None and not isinstance(config, OnlineConfig):
        raise UserError(
            f"recipe {source} is of the {config.loop} loop, and the methods of a comparison learn from rollouts: "
            "choose a recipe with `loop: online`, or a pipeline (see `whet recipes`)"
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


def _trial(source: str, method: str, seed: int, overrides: Sequence[str]) -> Trial:
    # First the preset: it replaces the recipe's whole algorithm, and what the user overrides of it comes on top.
    whole = (f"algorithm={method}", *overrides, f"seed={seed}")
    try:
        recipe = read_recipe(source, whole)
    except UserError as error:
        raise UserError(f"method {method}: {error}") from None
    return Trial(method=method, seed=seed, overrides=whole, recipe=recipe)
