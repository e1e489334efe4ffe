"""The advantages of Stable-Baselines3's RolloutBuffer on the same steps; skipped where it is not installed."""

import numpy as np
import pytest
import torch

from tests.control.small_runs import built, control_config
from whet.train.control.annotate import annotate

buffers = pytest.importorskip("stable_baselines3.common.buffers")
GAMMA, LAM, COPIES, LENGTH = 0.98, 0.8, 3, 40


def test_advantages_and_targets():
    """CartPole cut after ten steps, so there are truncations: they add γ·V(s′) to a reward there, as here."""
    config = control_config(
        "CartPole-v1",
        environment={"name": "CartPole-v1", "max_steps": 10},
        algorithm={"preset": "ppo", "gae": {"gamma": GAMMA, "lam": LAM}, "scaling": "unscaled"},
        rollout={"environments": COPIES, "length": LENGTH},
    )
    control = built(config)
    rollout = control.collector.collect(1)
    batch, _ = annotate(control.algorithm, control.policy, rollout, 1, None)
    assert batch.values is not None
    assert batch.targets is not None
    ends = rollout.ended.numpy()  # (T, N)
    rewards = rollout.rewards.view(COPIES, LENGTH).T.numpy().copy()
    with torch.no_grad():
        beyond = control.policy.values(rollout.beyond).numpy()
    last = np.zeros(COPIES, np.float32)
    for value, step in zip(beyond, rollout.fragments.last[rollout.cut].tolist(), strict=True):
        copy, t = divmod(step, LENGTH)
        if ends[t, copy]:
            rewards[t, copy] += GAMMA * value
        else:
            last[copy] = value
    assert int(ends.sum()) > COPIES

    environments = control.collector.environments
    space = environments.copies[0].observation_space
    buffer = buffers.RolloutBuffer(
        LENGTH, space, environments.action_space, "cpu", gae_lambda=LAM, gamma=GAMMA, n_envs=COPIES
    )
    values = batch.values.view(COPIES, LENGTH).T
    began = np.ones(COPIES, bool)
    for t in range(LENGTH):
        observations = rollout.observations.view(COPIES, LENGTH, -1)[:, t].numpy()
        actions = rollout.actions.view(COPIES, LENGTH)[:, t].numpy()
        buffer.add(observations, actions, rewards[t], began, values[t], torch.zeros(COPIES))
        began = ends[t]
    buffer.compute_returns_and_advantage(torch.from_numpy(last), began)
    assert batch.advantages.view(COPIES, LENGTH).T.numpy() == pytest.approx(buffer.advantages, abs=1e-5)
    assert batch.targets.view(COPIES, LENGTH).T.numpy() == pytest.approx(buffer.returns, abs=1e-5)
