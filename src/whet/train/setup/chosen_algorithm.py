"""The algorithm of a config, and where its old log-probs come from. Imports no torch: `whet plan` asks too."""

from typing import Literal

from whet.algorithms.cells import plain, terms
from whet.algorithms.policy_loss import uncorrected
from whet.algorithms.table import ALGORITHMS, CELLS, KL_ESTIMATORS, Algorithm
from whet.config import AlgorithmBase, OnlineConfig
from whet.config.refusals import reads_old

# Source of the old log-probs: a forward pass of the policy before the update ("read"), the sampler's where they are
# the same numbers or stale rollouts are corrected by the ratio to them ("sampled"), or the forward pass of the only
# update ("own").
Old = Literal["read", "sampled", "own"]


def build_algorithm(config: AlgorithmBase) -> Algorithm:
    """The algorithm of a config, its options bound."""
    return Algorithm(
        **{kind: config.cell(kind) for kind in CELLS},
        kl=KL_ESTIMATORS[config.kl.estimator],
        kl_coefficient=config.kl.coefficient,
        kl_place=config.kl.place,
        paper=ALGORITHMS[config.preset].paper if config.preset in ALGORITHMS else "custom",
    )


def old_source(algorithm: Algorithm, config: OnlineConfig, *, is_exact: bool) -> Old:
    """The cheapest source of old log-probs that is correct for this algorithm. The only place that decides it.

    `is_exact`: the log-probs of the trainer's engine are the policy's (`Engine.is_exact`).
    """
    if reads_old(config.algorithm, config.critic):
        return "read"
    if config.staleness:  # π_old is the policy at the start of the step, or, where nothing else corrects, the sampler
        return "sampled" if plain(algorithm.importance_correction) is uncorrected else "read"
    if is_exact and config.engine.name == config.trainer_engine.name:  # else workers sample with another one
        return "sampled"
    updates = config.update.epochs * config.update.minibatches
    in_advantage = algorithm.needs_values or "logprobs_old" in terms(algorithm.advantage)
    compared = in_advantage or algorithm.needs_reference or algorithm.importance_correction is not uncorrected
    return "own" if updates == 1 and not compared and config.update.target_kl is None else "read"
