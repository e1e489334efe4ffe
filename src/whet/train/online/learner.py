"""State of an online step: models and optimizers, controllers, offloading.

`Learner` holds policy, reference and critic. `ControllerState` holds the numbers that adapt during a run (KL
coefficient, sampling temperature, running reward statistics, draws); it is saved with every checkpoint.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from whet.algorithms.policy_loss import adapted, annealed, spread_temperature
from whet.algorithms.table import OBJECTIVES, Algorithm
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.models.adapters.lora import has_adapters
from whet.models.adapters.quantized_base import dequantized_bytes
from whet.models.protocol import CausalLM
from whet.models.reward.shared_base import shares_memory
from whet.records import Sampling
from whet.rollout import draw
from whet.tasks.protocol import Adaptive, Grader, Task
from whet.train.online.critic import Critic
from whet.train.online.reference import Reference, build_reference
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.optimizers.state_sizes import STATE_BYTES
from whet.train.rows.sft import fit, supervised_row
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import Parts
from whet.train.setup.chosen_algorithm import Old, build_algorithm, old_source
from whet.train.setup.disk_use import FP32_BYTES
from whet.train.setup.offload_choice import to_offload
from whet.train.setup.offloading import Present, moments, present_in, size_of, weights
from whet.train.setup.reward_grader import ModelGrader


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
    def kept(self) -> Mapping[str, Checkpointed | None]:
        """What checkpoints hold besides the policy and its optimizer."""
        return {"reference": self.reference, "critic": self.critic}

    @property
    def mismatch_limit(self) -> float:
        """Where rollouts are stale, none: they are of other weights. Workers prove theirs at every hand-off instead."""
        ahead = self.config.asynchronous
        return math.inf if ahead is not None and ahead.staleness else self.config.update.mismatch_limit

    @property
    def every_optimizer(self) -> Sequence[torch.optim.Optimizer]:
        """The policy's and, where there is one, the critic's."""
        return [self.optimizer] if self.critic is None else [self.optimizer, self.critic.optimizer]

    def optimizers(self, step: int) -> Sequence[torch.optim.Optimizer]:
        """Optimizers that step now: only the critic's during its warm-up."""
        if self.critic is not None and self.critic.is_warming_up(step):
            return [self.critic.optimizer]
        return self.every_optimizer

    def settle(self, step: int, present: Present) -> None:
        """After the updates of a step: syncs the reference if due and frees gradients."""
        if self.reference is not None and self.reference.is_due(step):
            with present("reference"):
                self.reference.follow(self.policy)
        for optimizer in self.every_optimizer:  # frees memory for the rollouts' KV cache
            optimizer.zero_grad(set_to_none=True)


def build_learner(parts: Parts[CausalLM], config: OnlineConfig, world: World) -> Learner:
    """Policy, and reference and critic where the algorithm needs them."""
    assert parts.engine is not None
    algorithm = build_algorithm(config.algorithm)
    return Learner(
        policy=parts.policy,
        optimizer=parts.optimizer,
        algorithm=algorithm,
        reference=build_reference(algorithm, parts.policy, parts.tokenizer, parts.task, config, world),
        critic=Critic(parts.policy, config, world) if algorithm.needs_values else None,
        config=config,
        world=world,
        old=old_source(algorithm, config, is_exact=parts.engine.is_exact),
    )


LONGEST_HISTORY = 1000  # steps; older ones have no weight under any usual decay


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """Settings of one step, as the controllers choose them."""

    sampling: Sampling
    kl_coefficient: float
    history: Tensor  # (steps,) mean rewards of the steps before, oldest first
    moments: tuple[float, float, float]  # count, sum and sum of squares of all rewards before


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """Measurements of a finished step that the controllers adapt to."""

    paid: float  # mean reward after shaping and KL penalty
    moments: tuple[float, float, float]
    kl: float  # to the reference, nats a token
    rollouts: int


@dataclass(slots=True)
class ControllerState(Checkpointed):
    """State of all controllers; `draws` counts sampling rounds and seeds the next one."""

    kl_coefficient: float
    draws: int = 0
    deviation: float | None = None  # of the rewards of the last step, before shaping
    history: list[float] = field(default_factory=list)
    moments: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def next_draw(self) -> int:
        """Number of the next draw of examples: 1, 2, … over the run."""
        self.draws += 1
        return self.draws

    def step_settings(self, config: OnlineConfig, *, tokens: int, stops: Iterable[int] = ()) -> StepSettings:
        """Settings of the next step, after this many sampled tokens; `stops` are the ids that end a completion."""
        sampling, span = config.rollout.sampling.ended_by(stops), config.rollout.adaptive_temperature
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
        """Updates the controllers after a step."""
        self.history = [*self.history, seen.paid][-LONGEST_HISTORY:]
        self.moments = seen.moments
        kl = config.algorithm.kl
        if kl.target is not None:
            self.kl_coefficient = adapted(
                self.kl_coefficient, seen.kl, target=kl.target, horizon=kl.horizon, count=seen.rollouts
            )

    def numbers(self) -> dict[str, Any]:
        return asdict(self)

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.kl_coefficient, self.draws = numbers["kl_coefficient"], numbers["draws"]
        self.deviation, self.history = numbers["deviation"], list(numbers["history"])
        count, total, squares = numbers["moments"]
        self.moments = (count, total, squares)


@dataclass(slots=True)
class TaskState(Checkpointed):
    """State of a task that adapts to the policy."""

    task: Adaptive

    def numbers(self) -> dict[str, Any]:
        return self.task.state()

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.task.restore(numbers)


def task_state(task: Task) -> TaskState | None:
    """What checkpoints keep of a task; nothing if its draws depend on the seed alone."""
    return TaskState(task) if isinstance(task, Adaptive) else None


COLD_START = 0  # between seed and step in the random stream of cold-start draws: rollouts have no such number


def cold_start(parts: Parts[CausalLM], config: OnlineConfig, world: World, progress: Progress) -> None:
    """A few supervised steps on the task's own answers: a policy that is never right gets no learning signal.

    They are repeated, not restored, on resume: same seed, same steps.
    """
    settings = config.cold_start
    if not settings.steps:
        return
    optimizer = make_optimizer(parts.policy, config.optimizer.model_copy(update={"lr": settings.lr}))
    losses = []
    for step in range(1, settings.steps + 1):
        examples = world.shard(draw(parts.task, settings.batch_size, seed=(config.seed, COLD_START, step)))
        rows = [supervised_row(parts.tokenizer, example, parts.policy.context) for example in examples]
        statistics, _ = fit(parts.policy, optimizer, rows, OBJECTIVES["sft"], config, world)
        losses.append(statistics["loss"])
    progress.note(f"cold start: {settings.steps} supervised steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")


def build_offloading(learner: Learner, grader: Grader) -> Present:
    """Offloads what the recipe says and, with `auto`, what does not fit on the GPU next to the rest."""
    device = learner.world.device
    if device.type != "cuda":  # nothing to offload: device memory is host memory
        return nullcontext
    is_spread, ranks = learner.world.sharding.is_sharded, learner.world.size
    found = offload_candidates(learner, grader)
    groups = [group["params"] for one in learner.every_optimizer for group in one.param_groups]
    count = sum(parameter.numel() for group in groups for parameter in group)
    assert isinstance(learner.policy, nn.Module)
    own = size_of((*learner.policy.parameters(), *learner.policy.buffers()))
    copies = dequantized_bytes(learner.policy) or own
    settings = learner.config.optimizer
    sizes = {name: size_of(model.parameters()) for name, (model, _) in found.items()}
    moment_bytes = count * STATE_BYTES[settings.name]
    # Weights; as much for their bf16 copy and the engine's buffers; gradients.
    resident = own + copies + count * FP32_BYTES
    if is_spread:  # its moments stay with its parts, and the engine's copy is in bf16
        resident = (own + count * FP32_BYTES + moment_bytes) // ranks + copies // 2
    elif settings.master_weights != "offload":  # then the moments are in host memory already
        sizes["optimizer"] = moment_bytes
    away = to_offload(
        learner.config.offload.model_dump(),
        sizes,
        resident=resident,
        memory=torch.cuda.get_device_properties(device).total_memory,
    )
    offloaded = {name: weights(*found[name], device) for name in away & found.keys()}
    if "optimizer" in away:
        offloaded["optimizer"] = moments(learner.every_optimizer, device)
    return present_in(offloaded)


def offload_candidates(learner: Learner, grader: Grader) -> dict[str, tuple[nn.Module, bool]]:
    """Models other than the policy that are loaded (reference, reward model, critic), and whether each is frozen."""
    found: dict[str, tuple[nn.Module, bool]] = {}
    reference, critic = learner.reference, learner.critic
    # Then reference and critic are adapters on the policy's own weights, or their sharding offloads them.
    shares = has_adapters(learner.policy) or learner.world.sharding.is_sharded
    if reference is not None and isinstance(reference.model, nn.Module) and not shares and reference.own is None:
        found["reference"] = (reference.model, reference.sync_steps is None)
    is_apart = bool(learner.config.placement.reward)
    judge = None if is_apart or not isinstance(grader, ModelGrader) else grader.model
    if judge is not None and not (shares and shares_memory(judge, learner.policy)):
        found["reward"] = (judge, True)
    if critic is not None and critic.trunk is not None and not shares:
        found["critic"] = (critic, False)
    return found
