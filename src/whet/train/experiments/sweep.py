"""Several methods × seeds of one recipe, one run after the other. Knows nothing of what their results mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from whet.algorithms.table import ALGORITHMS
from whet.config import OnlineConfig
from whet.errors import UserError, nearest
from whet.recipe import Config, Recipe, read_recipe
from whet.runs.experiment_directories import ComparisonDirectory
from whet.train.experiments.jobs import Job

OURS = ("algorithm", "algorithm.preset", "seed")  # keys that a comparison itself sets


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The runs of a comparison."""

    recipe: str  # its name
    overrides: Mapping[str, tuple[str, ...]]  # method → what is changed of the recipe, but for the seed
    recipes: Mapping[tuple[str, int], Recipe]  # by method and seed

    def jobs(self, directory: ComparisonDirectory) -> dict[tuple[str, int], Job]:
        """What there is to make in a directory.

        Seed by seed rather than method by method: stopped half-way, there is something to compare.
        """
        return {
            (method, seed): Job(label=f"{method} seed {seed}", recipe=recipe, path=directory.run_path(method, seed))
            for (method, seed), recipe in self.recipes.items()
        }


def read_sweep(
    source: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    changes: Sequence[tuple[str, str]],
) -> Sweep:
    """The runs to make, every recipe of them valid; `changes` are method and KEY=VALUE, for that method alone."""
    for method in methods:
        if method not in ALGORITHMS:
            raise UserError(f"no method {method!r}{nearest(method, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
    for override in overrides:
        _check_override(override)
    _check_loop(source, overrides)
    own = _changes(changes, methods)
    # First the preset: it replaces the recipe's whole algorithm, and what the user overrides of it comes on top.
    whole = {method: (f"algorithm={method}", *overrides, *own[method]) for method in methods}
    recipes = {(method, seed): _recipe(source, method, seed, whole[method]) for seed in seeds for method in methods}
    return Sweep(recipe=next(iter(recipes.values())).name, overrides=whole, recipes=recipes)


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


def _changes(changes: Sequence[tuple[str, str]], methods: Sequence[str]) -> dict[str, list[str]]:
    own: dict[str, list[str]] = {method: [] for method in methods}
    for method, override in changes:
        if method not in own:
            raise UserError(f"--set {method}:{override}: {method!r} is not among the methods{nearest(method, methods)}")
        _check_override(override)
        own[method].append(override)
    return own


def _recipe(source: str, method: str, seed: int, overrides: Sequence[str]) -> Recipe:
    try:
        return read_recipe(source, (*overrides, f"seed={seed}"))
    except UserError as error:
        raise UserError(f"method {method}: {error}") from None
