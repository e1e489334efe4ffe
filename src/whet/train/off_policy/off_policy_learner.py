"""Builds what a config names: environments and replay buffer, policy, critics and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whet.config.control.off_policy import OffPolicyConfig
from whet.control.distributions import Distribution, NoisyTanh, distribution_of
from whet.control.policies import Policy, PolicyShape
from whet.control.spaces import gymnasium
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.storage.safetensors_files import fingerprint
from whet.streams import stream_key
from whet.train.control.evaluation import build_environments
from whet.train.control.parts import WEIGHTS, ControlParts
from whet.train.off_policy.experience import Experience
from whet.train.off_policy.trained_critics import TrainedCritics
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.session.disk_space import size


@dataclass(frozen=True, kw_only=True, slots=True)
class Learner:
    """All that the loop uses."""

    policy: Policy
    critics: TrainedCritics
    experience: Experience
    parts: ControlParts

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return (self.parts.optimizer, self.critics.optimizer)


def build_learner(config: OffPolicyConfig, world: World) -> Learner:
    """The parts of a run."""
    if world.size > 1:
        raise UserError("loop off_policy runs in one process: start it without torchrun")
    environments = build_environments(config, config.rollout.environments)
    distribution = distribution_for(config, environments.action_space)
    shape = PolicyShape(
        widths=config.policy.widths,
        activation=config.policy.activation,
        state_std=True,
        orthogonal=False,
        normalize=config.normalize.observations,
        clip=config.normalize.clip,
    )
    with torch.random.fork_rng():
        torch.manual_seed(stream_key((config.seed, WEIGHTS)) % 2**63)
        policy = Policy(shape, environments.coder, distribution, has_critic=False).to(world.device)
        critics = TrainedCritics(config, policy)
    try:
        experience = Experience(config, environments)
    except MemoryError as error:
        raise UserError(f"the replay buffer does not fit into memory ({error}): lower replay.size") from error
    weights = sum(one.numel() for one in policy.parameters())
    buffer = experience.buffer
    notes = (
        f"environment: {config.environment.name}, {len(environments)} copies; policy: {weights:,} weights",
        f"replay buffer: {buffer.length * buffer.copies:,} transitions, {size(buffer.bytes)} when full; on disk once "
        "besides, because checkpoints share its files",
    )
    parts = ControlParts(
        policy=policy,
        optimizer=make_optimizer(policy, config.optimizer),
        origin=fingerprint(policy),
        notes=notes,
    )
    return Learner(policy=policy, critics=critics, experience=experience, parts=parts)


def distribution_for(config: OffPolicyConfig, space: Any) -> Distribution:
    """Of bounded actions; a UserError for others."""
    spaces, preset = gymnasium().spaces, config.algorithm.preset
    if not isinstance(space, spaces.Box):
        raise UserError(
            f"{preset} is for actions that are numbers between bounds (Box), and those of {config.environment.name} "
            f"are {space}: use loop control, e.g. with algorithm=ppo"
        )
    if not space.is_bounded():
        raise UserError(
            f"{preset} stretches its actions to their bounds, and those of {config.environment.name} have none "
            f"({space}): give them bounds (gymnasium.wrappers.RescaleAction), or use loop control"
        )
    if preset == "sac":
        return distribution_of(space, squash=True)
    low, high = (tuple(bound.reshape(-1).tolist()) for bound in (space.low, space.high))
    return NoisyTanh(low, high, tuple(space.shape), config.algorithm.action_noise)
