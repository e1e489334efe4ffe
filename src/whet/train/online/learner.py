"""The models of the online loop: policy, reference, critic, and their optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from whet.algorithms.cells import terms
from whet.algorithms.importance_correction import uncorrected
from whet.algorithms.table import Algorithm
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.models.protocol import CausalLM
from whet.train.online.critic import Critic
from whet.train.online.reference import Reference, build_reference
from whet.train.setup.build import Parts, build_algorithm
from whet.train.setup.offloading import OffloadedModels

# Where the log-probs at the start of a step come from: a pass of the policy's, the sampler's where they are the same
# numbers, or the only update's own pass.
Old = Literal["read", "sampled", "own"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """The policy, its optimizer and its algorithm; a reference and a critic where the algorithm needs them."""

    policy: CausalLM
    optimizer: torch.optim.Optimizer
    algorithm: Algorithm
    reference: Reference | None
    critic: Critic | None
    config: OnlineConfig
    world: World
    old: Old = "read"

    @property
    def every_optimizer(self) -> Sequence[torch.optim.Optimizer]:
        """The policy's and, where there is one, the critic's."""
        return [self.optimizer] if self.critic is None else [self.optimizer, self.critic.optimizer]

    def optimizers(self, step: int) -> Sequence[torch.optim.Optimizer]:
        """Those that move at this step: while the critic warms up, the policy waits."""
        if self.critic is not None and self.critic.is_warming_up(step):
            return [self.critic.optimizer]
        return self.every_optimizer

    def settle(self, step: int, offloaded: OffloadedModels) -> None:
        """After the updates of a step: the reference moves, where this is its step, and gradients are freed."""
        if self.reference is not None and self.reference.is_due(step):
            with offloaded.present("reference"):
                self.reference.follow(self.policy)
        for optimizer in self.every_optimizer:  # their memory is worth more to rollouts
            optimizer.zero_grad(set_to_none=True)


def build_learner(parts: Parts, config: OnlineConfig, world: World) -> Learner:
    """Everything that the algorithm needs, from the weights that the run starts from."""
    algorithm = build_algorithm(config.algorithm)
    return Learner(
        policy=parts.policy,
        optimizer=parts.optimizer,
        algorithm=algorithm,
        reference=build_reference(algorithm, parts.policy, parts.tokenizer, parts.task, config),
        critic=Critic(parts.policy, config) if algorithm.needs_values else None,
        config=config,
        world=world,
        old=_source(algorithm, config, is_exact=parts.engine.is_exact),
    )


def _source(algorithm: Algorithm, config: OnlineConfig, *, is_exact: bool) -> Old:
    """The cheapest that gives all that the algorithm asks for."""
    shared_critic = algorithm.needs_values and config.critic.model == "shared"
    entropy = config.algorithm.entropy
    if shared_critic or (entropy.floor > 0 and entropy.floor_coefficient > 0):
        return "read"
    if is_exact:
        return "sampled"
    updates = config.update.epochs * config.update.minibatches
    in_advantage = algorithm.needs_values or "logprobs_old" in terms(algorithm.advantage)
    compared = in_advantage or algorithm.needs_reference or algorithm.importance_correction is not uncorrected
    return "own" if updates == 1 and not compared and config.update.target_kl is None else "read"
