"""Which keys of a recipe change nothing in its combination. Lists a key only where that is certain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from whet.algorithms.cells import options, terms
from whet.algorithms.surrogates import clip
from whet.algorithms.table import ADVANTAGES, SURROGATES, WEIGHTINGS
from whet.config import AlgorithmBase, OnlineConfig, TrainConfig
from whet.recipe import Recipe
from whet.tasks.table import TASKS


def keys_without_effect(recipe: Recipe) -> dict[str, str]:
    """Dotted key → the reason, for the keys that the recipe's file or the command line wrote."""
    config = recipe.config
    inert = _schedule(config)
    inert |= _online(config) if isinstance(config, OnlineConfig) else _offline()
    found: dict[str, str] = {}
    for key in written_keys(recipe.written):
        reasons = [why for inner, why in inert.items() if key == inner or key.startswith(f"{inner}.")]
        found |= {key: reasons[0]} if reasons else {}
    return found


def written_keys(written: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys that hold values."""
    for key, value in written.items():
        if isinstance(value, Mapping):
            yield from written_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def _schedule(config: TrainConfig) -> dict[str, str]:
    # The first step after the warm-up has the full rate under every schedule.
    if config.steps - config.optimizer.warmup_steps > 1:
        return {}
    return {"optimizer.schedule": "the run ends with the warm-up, before the rate could fall"}


def _online(config: OnlineConfig) -> dict[str, str]:
    algorithm: AlgorithmBase = config.algorithm
    inert = _unused_cells(algorithm)
    updates = config.update.epochs * config.update.minibatches
    if SURROGATES[algorithm.surrogate] is clip and updates == 1 and _has_width(algorithm):
        inert["algorithm.clip"] = "one update per rollout: every ratio is 1, so nothing is clipped"
    if algorithm.kl.coefficient == 0:
        inert["algorithm.kl.place"] = "algorithm.kl.coefficient is 0"
        if "logprobs_ref" not in terms(SURROGATES[algorithm.surrogate]):
            inert["algorithm.kl.estimator"] = "algorithm.kl.coefficient is 0, so no reference is loaded"
    if not config.reward.functions and config.task.name in TASKS:
        inert["reward.time_limit_seconds"] = "reward.functions is empty: a packaged task scores without a limit"
    return inert


def _unused_cells(algorithm: AlgorithmBase) -> dict[str, str]:
    """Options that stand under the name of a cell that is not chosen."""
    kinds = {"advantage": ADVANTAGES, "surrogate": SURROGATES, "weighting": WEIGHTINGS}
    chosen = {"advantage": algorithm.advantage, "surrogate": algorithm.surrogate, "weighting": algorithm.weighting}
    return {
        f"algorithm.{name}": f"algorithm.{kind} is {chosen[kind]}"
        for kind, table in kinds.items()
        for name, cell in table.items()
        if options(cell) and name != chosen[kind]
    }


def _has_width(algorithm: AlgorithmBase) -> bool:
    """Whether the clip range has room on both sides: at a width of 0 rounding decides which side a ratio of 1 is on."""
    return all(width > 0 for width in algorithm.options_of("clip").values())


def _offline() -> dict[str, str]:
    once = "the offline loop takes one optimizer step on each step's rows"
    return {
        "update.epochs": once,
        "update.minibatches": once,
        "update.mismatch_limit": "the offline loop samples nothing that could disagree",
        "save.rollouts_every_steps": "the offline loop has no rollouts",
    }
