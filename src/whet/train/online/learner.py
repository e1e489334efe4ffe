"""What an online step works with: the models, their optimizers, and the controllers.

`Learner` holds policy, reference and critic. `ControllerState` holds the few numbers that follow the run (KL
coefficient, sampling temperature, running reward statistics, draws) and is saved with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from whet.algorithms.cells import terms
from whet.algorithms.policy_loss import adapted, annealed, spread_temperature, uncorrected
from whet.algorithms.table import Algorithm
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.models.protocol import CausalLM
from whet.records import Sampling
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


LONGEST_HISTORY = 1000  # steps: at any usual decay, older ones weigh nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """What the controllers set for one step."""

    sampling: Sampling
    kl_coefficient: float
    history: Tensor  # (steps,) mean rewards of the steps before, oldest first
    moments: tuple[float, float, float]  # count, sum and sum of squares of all rewards before


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What the controllers are told of a finished step."""

    paid: float  # the mean reward as the advantage saw it
    moments: tuple[float, float, float]
    kl: float  # to the reference, nats a token
    rollouts: int


@dataclass(slots=True)
class ControllerState:
    """The state of all controllers; `draws` names the examples of the next sampling round."""

    kl_coefficient: float
    draws: int = 0
    deviation: float | None = None  # of all rewards of the last step, as they were given
    history: list[float] = field(default_factory=list)
    moments: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def next_draw(self) -> int:
        """The number of the next draw of examples: 1, 2, … over the whole run."""
        self.draws += 1
        return self.draws

    def step_settings(self, config: OnlineConfig, *, tokens: int) -> StepSettings:
        """The settings of the next step, after so many sampled tokens."""
        sampling, span = config.rollout.sampling, config.rollout.adaptive_temperature
        if span is not None:
            temperature = spread_temperature(sampling.temperature, self.deviation, low=span.low, high=span.high)
            sampling = replace(sampling, temperature=temperature)
        return StepSettings(
            sampling=sampling,
            kl_coefficient=annealed(self.kl_coefficient, tokens, over=config.algorithm.kl.anneal_tokens),
            history=torch.tensor(self.history, dtype=torch.float64),
            moments=self.moments,
        )

    def learn(self, seen: StepOutcome, config: OnlineConfig) -> None:
        """Takes up what a step has shown."""
        self.history = [*self.history, seen.paid][-LONGEST_HISTORY:]
        self.moments = seen.moments
        kl = config.algorithm.kl
        if kl.target is not None:
            self.kl_coefficient = adapted(
                self.kl_coefficient, seen.kl, target=kl.target, horizon=kl.horizon, count=seen.rollouts
            )

    def numbers(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def tensors(self) -> dict[str, Tensor]:
        """None: it is all numbers."""
        return {}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        """Puts back what `numbers` gave."""
        self.kl_coefficient, self.draws = numbers["kl_coefficient"], numbers["draws"]
        self.deviation, self.history = numbers["deviation"], list(numbers["history"])
        count, total, squares = numbers["moments"]
        self.moments = (count, total, squares)
