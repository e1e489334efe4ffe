"""A sweep: one recipe with several algorithms and seeds, one run after the other."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from whet.algorithms.table import ALGORITHMS
from whet.config import OnlineConfig
from whet.errors import UserError, nearest
from whet.recipe import Config, Recipe, read_recipe
from whet.runs.experiment_directories import ComparisonDirectory
from whet.train.experiments.jobs import PlannedRun, plan_run

OURS = ("algorithm", "algorithm.preset", "seed")  # keys that a comparison sets


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The recipes of a comparison."""

    recipe: str  # name
    overrides: Mapping[str, tuple[str, ...]]  # method → overrides of the recipe, without the seed
    recipes: Mapping[tuple[str, int], Recipe]  # by method and seed

    def jobs(self, directory: ComparisonDirectory) -> dict[tuple[str, int], PlannedRun]:
        """The runs of the sweep, seed by seed: stopped half-way, all methods can be compared on the seeds so far."""
        return {
            (method, seed): plan_run(f"{method} seed {seed}", recipe, directory.run_path(method, seed))
            for (method, seed), recipe in self.recipes.items()
        }


def read_sweep(
    source: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    overrides: Sequence[str],
    changes: Sequence[tuple[str, str]],
) -> Sweep:
    """Reads and validates the recipe of every run; `changes` are overrides of one method: (method, KEY=VALUE)."""
    check_methods(methods)
    for method in methods:
        if method not in ALGORITHMS:
            raise UserError(f"no method {method!r}{nearest(method, ALGORITHMS)} (known: {', '.join(ALGORITHMS)})")
    for override in overrides:
        _check_override(override)
    _check_loop(source, overrides)
    own = _changes(changes, methods)
    # The preset comes first: it replaces the recipe's algorithm section; overrides then apply to the preset.
    every = {method: (f"algorithm={method}", *overrides, *own[method]) for method in methods}
    recipes = {(method, seed): _recipe(source, method, seed, every[method]) for seed in seeds for method in methods}
    return Sweep(recipe=next(iter(recipes.values())).name, overrides=every, recipes=recipes)


def check_methods(methods: Sequence[str]) -> None:
    """Refuses an empty list of methods and duplicates."""
    if not methods:
        raise UserError("--methods names no method: write e.g. --methods reinforce,rloo,grpo")
    twice = next((name for name in methods if methods.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"method {twice!r} comes twice in --methods; name it once")


def _check_override(override: str) -> None:
    key = override.partition("=")[0]
    if key in OURS:
        instead = "--seeds" if key == "seed" else "--methods"
        raise UserError(f"{override}: a comparison sets {key!r} itself; use {instead}")


def _check_loop(source: str, overrides: Sequence[str]) -> None:
    """Refuses an offline recipe; other errors are reported when the recipe of a method is read."""
    config: Config | None = None
    with suppress(UserError):
        config = read_recipe(source, overrides).config
    if config is not None and not isinstance(config, OnlineConfig):
        raise UserError(
            f"recipe {source} has loop {config.loop}, and the methods of a comparison learn from rollouts: "
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
