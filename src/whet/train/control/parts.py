"""Builds what a control config names: environments, policy, optimizer; saves the policy, and a video of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.table import Algorithm
from whet.config.control import ControlConfig
from whet.config.loops import Acting
from whet.control.batched import batched_environment
from whet.control.distributions import distribution_of
from whet.control.policies import Policy, PolicyShape, read_weights
from whet.control.spaces import observation_coder
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.storage.safetensors_files import fingerprint
from whet.models.storage.tensor_file import Whole, as_it_is
from whet.runs.directory import RunDirectory
from whet.runs.layout import video_path
from whet.runs.logs import write_atomic
from whet.streams import stream_key
from whet.train.control.annotate import RewardNormalization, gamma_of
from whet.train.control.batched_collector import BatchedCollector
from whet.train.control.collector import Collector, Rollout
from whet.train.control.evaluation import build_copies, film, step_limit
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.session.callbacks import Progress
from whet.train.setup.chosen_algorithm import build_algorithm

WEIGHTS = 4  # of the streams of random numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlParts:
    """What a session reads of a run of control: a policy without text."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    origin: str
    notes: tuple[str, ...]
    engine: None = None
    conversing: None = None
    adapter: None = None
    tokenizer: None = None
    lengths: None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)  # of tasks; episodes are the session's `measure`
    dtype: torch.dtype = torch.float32
    whole: Whole = as_it_is

    def measure(self, policy: Policy) -> dict[str, float]:  # noqa: ARG002 - episodes are measured by the loop
        return {}

    def save_model(self, directory: Path | None) -> None:
        self.policy.save(directory)

    def export_model(self, directory: Path | None) -> None:
        self.policy.save(directory)

    def restore_model(self, directory: Path) -> None:
        """Gives the policy the weights that `save_model` wrote."""
        saved, mine = read_weights(directory), self.policy.state_dict()
        if {name: one.shape for name, one in saved.items()} != {name: one.shape for name, one in mine.items()}:
            raise UserError(f"{directory}: the saved policy is another than the run's config describes")
        self.policy.load_state_dict(saved)

    @property
    def saved(self) -> Sequence[Tensor]:
        """What a checkpoint holds."""
        return list(self.policy.state_dict().values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """All that the loop uses."""

    policy: Policy
    algorithm: Algorithm
    collector: Collector | BatchedCollector
    scale: RewardNormalization | None
    parts: ControlParts

    def observe(self, rollout: Rollout) -> None:
        """Adds observations to the statistics by which the next rollout is normalised; within one they are fixed."""
        if self.policy.normalizer is not None:
            self.policy.normalizer.moments.add(rollout.observations)


def build_control(config: ControlConfig, world: World) -> Control:
    """The parts of a run."""
    if world.size > 1:
        raise UserError("loop control runs in one process: start it without torchrun")
    copies = config.rollout.environments * config.rollout.group
    batched = batched_environment(config.environment.name, config.environment.options)
    if batched is None:
        environments = build_copies(config, copies)
        action_space, coder = environments.action_space, environments.coder
    else:
        require_fragments(config)
        action_space, coder = batched.action_space, observation_coder(batched.observation_space)
    distribution = distribution_of(action_space, squash=config.policy.squash)
    shape = PolicyShape(
        **config.policy.model_dump(exclude={"squash"}),
        normalize=config.normalize.observations,
        clip=config.normalize.clip,
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream_key((config.seed, WEIGHTS)) % 2**63)
        policy = Policy(shape, coder, distribution, has_critic=config.needs_values)
    policy.to(world.device)
    algorithm = build_algorithm(config.algorithm)
    scale = None
    if config.normalize.rewards:
        scale = RewardNormalization(copies, gamma_of(algorithm), config.normalize.clip)
    weights = sum(one.numel() for one in policy.parameters())
    note = f"environment: {config.environment.name}, {copies} copies; policy: {config.policy.kind}, {weights:,} weights"
    parts = ControlParts(
        policy=policy,
        optimizer=make_optimizer(policy, config.optimizer, is_flat=True),
        origin=fingerprint(policy),
        notes=(note,),
    )
    collector: Collector | BatchedCollector
    if batched is None:
        collector = Collector(config, environments, policy, world.device)
    else:
        collector = BatchedCollector(config, batched, policy, world.device, step_limit(config, batched))
    return Control(policy=policy, algorithm=algorithm, collector=collector, scale=scale, parts=parts)


def require_fragments(config: ControlConfig) -> None:
    """Batched environments step all copies at once, and show their newest observation."""
    name, wrong = config.environment.name, []
    if not config.rollout.length:
        wrong.append("rollout.length above 0")
    if config.policy.history > 1:
        wrong.append("policy.history=1")
    if config.rollout.processes > 1:
        wrong.append("rollout.processes=1")
    if wrong:
        raise UserError(f"environment {name} is batched, and needs {' and '.join(wrong)}")


@contextmanager
def few_threads(config: Acting) -> Iterator[None]:
    """Products of a small network take less time in one thread than several threads take to meet."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if config.policy.kind == "mlp" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_film(config: Acting, run: RunDirectory, parts: ControlParts, progress: Progress) -> None:
    """An evaluation episode of the best policy as a video, where the environment draws."""
    best = run.best_model()
    if best is None:
        return
    newest = {name: one.clone() for name, one in parts.policy.state_dict().items()}
    parts.restore_model(best)
    try:
        video = film(config, parts.policy)
    except UserError as error:
        progress.note(f"note: no video: {error}")
        video = None
    parts.policy.load_state_dict(newest)
    if video is not None:
        write_atomic(video_path(run.path), video)
