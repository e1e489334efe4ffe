"""A sweep: one recipe with several algorithms or preference losses and seeds, one run after the other."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from whet.algorithms.preference.preference_table import PREFERENCES
from whet.algorithms.table import ALGORITHMS
from whet.config import OfflineConfig, OnlineConfig
from whet.config.loops import CollectConfig
from whet.errors import UserError, nearest
from whet.evaluate.measures import MEASURES, measure_of
from whet.recipe import Config, Recipe, read_recipe
from whet.report.comparison.entries import ACCURACY
from whet.report.comparison.sweep_results import Ranking
from whet.runs.experiment_directories import ComparisonDirectory
from whet.train.experiments.jobs import PlannedRun, plan_run
from whet.train.setup.epochs import load_sides

OURS = ("algorithm", "algorithm.preset", "objective", "objective.name", "seed")  # keys that a comparison sets
REWARD = "eval/reward"
OF_COMPLETIONS = (ACCURACY, REWARD)  # measured on completions of held-out prompts, others on held-out rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The recipes of a comparison."""

    recipe: str  # name
    overrides: Mapping[str, tuple[str, ...]]  # method → overrides of the recipe, without the seed
    recipes: Mapping[tuple[str, int], Recipe]  # by method and seed
    ranking: Ranking = field(default_factory=Ranking)

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
    *,
    runs: Path | None = None,
) -> Sweep:
    """Reads and validates the recipe of every run; `changes` are overrides of one method: (method, KEY=VALUE).

    `runs` is the folder in which runs are looked up by name.
    """
    check_methods(methods)
    key = _compared_key(methods)
    for override in overrides:
        _check_override(override)
    _check_loop(source, overrides, key)
    own = _changes(changes, methods)
    # The preset comes first: it replaces the recipe's section; overrides then apply to the preset.
    every = {method: (f"{key}={method}", *overrides, *own[method]) for method in methods}
    recipes = {
        (method, seed): _recipe(source, method, seed, every[method], runs) for seed in seeds for method in methods
    }
    first = next(iter(recipes.values()))
    return Sweep(recipe=first.name, overrides=every, recipes=recipes, ranking=_ranking(recipes, methods))


def check_methods(methods: Sequence[str]) -> None:
    """Refuses an empty list of methods and duplicates."""
    if not methods:
        raise UserError("--methods names no method: write e.g. --methods reinforce,rloo,grpo")
    twice = next((name for name in methods if methods.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"method {twice!r} comes twice in --methods; name it once")


def _compared_key(methods: Sequence[str]) -> str:
    """The key of a recipe that names its method: that of an online recipe, or of an offline one."""
    for key, table in (("algorithm", ALGORITHMS), ("objective", PREFERENCES)):
        if set(methods) <= table.keys():
            return key
    known = {**ALGORITHMS, **PREFERENCES}
    wrong = next((method for method in methods if method not in known), None)
    if wrong is None:
        online = next(method for method in methods if method in ALGORITHMS)
        offline = next(method for method in methods if method in PREFERENCES)
        raise UserError(
            f"{online} learns from rollouts and {offline} from pairs, so no recipe of one run fits both: compare "
            "them in a pipeline (see `whet recipes rlhf-reviews`)"
        )
    listed = f"online: {', '.join(ALGORITHMS)}; from preferences: {', '.join(PREFERENCES)}"
    raise UserError(f"no method {wrong!r}{nearest(wrong, known)} (known: {listed})")


def _ranking(recipes: Mapping[tuple[str, int], Recipe], methods: Sequence[str]) -> Ranking:
    """By `best.metric`, or by the first headline that such runs measure; refuses what does not compare."""
    configs = [recipe.config for recipe in recipes.values()]
    first = configs[0]
    assert isinstance(first, OnlineConfig | OfflineConfig)
    if any(not isinstance(config, CollectConfig) and not config.eval.every_steps for config in configs):
        raise UserError("eval.every_steps is 0, and methods are compared by their evaluations: set eval.every_steps")
    metrics = _metrics(first)
    if isinstance(first, OnlineConfig):
        _refuse_other_rewards(configs, metrics[0])
        return Ranking(metrics=metrics)
    if metrics[0] in OF_COMPLETIONS or first.data is None:
        return Ranking(metrics=metrics)
    units = {PREFERENCES[method].unit: method for method in methods}
    if len(units) > 1:
        raise UserError(
            f"{units['pair']} is measured on pairs and {units['label']} on single completions, so their accuracies do "
            "not compare: name a task with answers, or compare methods of one kind"
        )
    return Ranking(metrics=metrics, held_out=min(first.eval.examples, len(load_sides(first.data)[2])))


def _metrics(config: OnlineConfig | OfflineConfig) -> tuple[str, ...]:
    """What may rank the methods, the first that all runs have measured."""
    if config.best.metric:
        return (config.best.metric,)
    absent = {ACCURACY} if not config.task.is_graded else set()
    absent |= {REWARD} if isinstance(config, OfflineConfig) else set()
    return tuple(measure.metric for measure in MEASURES if measure.metric not in absent)


def _refuse_other_rewards(configs: Sequence[Config], metric: str) -> None:
    rewards = [config.reward for config in configs if isinstance(config, OnlineConfig)]
    if not measure_of(metric).is_share and any(reward != rewards[0] for reward in rewards):
        raise UserError(
            "the methods are ranked by held-out reward and have different rewards, which do not compare: give all of "
            "them the same reward, or a task with answers"
        )


def _check_override(override: str) -> None:
    key = override.partition("=")[0]
    if key in OURS:
        instead = "--seeds" if key == "seed" else "--methods"
        raise UserError(f"{override}: a comparison sets {key!r} itself; use {instead}")


def _check_loop(source: str, overrides: Sequence[str], key: str) -> None:
    """Refuses a recipe of another loop; other errors are reported when the recipe of a method is read."""
    config: Config | None = None
    with suppress(UserError):
        config = read_recipe(source, overrides).config
    learns, loop = {
        "algorithm": (OnlineConfig, "online"),
        "objective": (OfflineConfig, "offline"),
    }[key]
    if config is not None and not isinstance(config, learns):
        where = "rollouts" if loop == "online" else "pairs"
        raise UserError(
            f"recipe {source} has loop {config.loop}, and these methods learn from {where}: "
            f"choose a recipe with `loop: {loop}`, or a pipeline (see `whet recipes`)"
        )


def _changes(changes: Sequence[tuple[str, str]], methods: Sequence[str]) -> dict[str, list[str]]:
    own: dict[str, list[str]] = {method: [] for method in methods}
    for method, override in changes:
        if method not in own:
            raise UserError(f"--set {method}:{override}: {method!r} is not among the methods{nearest(method, methods)}")
        _check_override(override)
        own[method].append(override)
    return own


def _recipe(source: str, method: str, seed: int, overrides: Sequence[str], runs: Path | None) -> Recipe:
    try:
        return read_recipe(source, (*overrides, f"seed={seed}"), runs=runs)
    except UserError as error:
        raise UserError(f"method {method}: {error}") from None
