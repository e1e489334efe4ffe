"""A step of the loop: so many environment steps, each followed by the updates that are due."""

from __future__ import annotations

import numpy as np
import torch

from whet.config.control.off_policy import OffPolicyConfig
from whet.control.spaces import Floats
from whet.streams import stream_key
from whet.train.control.collector import NOISE
from whet.train.off_policy.off_policy_learner import Learner
from whet.train.off_policy.updates import UPDATES, Batch, Tally
from whet.train.optimizers.optimizer import learning_rate, set_learning_rate

BATCHES, UPDATE_NOISE = 5, 6  # of the streams of random numbers


def interact(config: OffPolicyConfig, learner: Learner, step: int) -> dict[str, float]:
    """Environment steps and updates; returns metrics. It is repeated exactly if the step is."""
    experience, settings, tally = learner.experience, config.update, Tally()
    exploring, updating = (_generator(config.seed, stream, step) for stream in (NOISE, UPDATE_NOISE))
    rng = np.random.default_rng(stream_key((config.seed, BATCHES, step)) % 2**63)
    for optimizer in learner.optimizers:
        set_learning_rate(optimizer, learning_rate(step, config.steps, config.optimizer))
    experience.begin()
    seen: list[Floats] = []
    for _ in range(config.rollout.length):
        seen.append(experience.environments.observations.copy())
        experience.advance(explored(config, learner, exploring))
        if experience.steps <= config.replay.learning_starts or experience.buffer.count % settings.every_steps:
            continue
        for _ in range(settings.gradient_steps):
            drawn = experience.draw(settings.batch_size, rng)
            if drawn is not None:
                batch = Batch.of(drawn, learner.policy)
                UPDATES[config.algorithm.preset](
                    learner.policy, learner.parts.optimizer, learner.critics, batch, updating, tally
                )
    if learner.policy.normalizer is not None:  # within a step the statistics are fixed
        rows = torch.from_numpy(np.concatenate(seen))
        learner.policy.normalizer.moments.add(rows.to(next(learner.policy.parameters()).device))
    return {**experience.metrics(), **tally.metrics()}


@torch.inference_mode()
def explored(config: OffPolicyConfig, learner: Learner, generator: torch.Generator) -> Floats:
    """(N, K) actions in [−1, 1] for the newest observations: random ones at first, then the policy's with its noise."""
    policy, experience = learner.policy, learner.experience
    copies = len(experience.environments)
    if experience.steps < config.replay.learning_starts:
        drawn: Floats = (2 * torch.rand(copies, policy.distribution.noise, generator=generator) - 1).numpy()
        return drawn
    device = next(policy.parameters()).device
    rows = policy.seen(torch.from_numpy(experience.environments.observations.copy()).to(device))
    noise = policy.distribution.draw_noise((copies,), generator).to(device)
    actions = policy.distribution.sample(policy.action_parameters(rows), noise)
    found: Floats = (actions.tanh() if config.algorithm.preset == "sac" else actions.clamp(-1, 1)).cpu().numpy()
    return found


def _generator(seed: int, stream: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_key((seed, stream, step)) % 2**63)
