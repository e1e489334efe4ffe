"""An update as a whole: its target recomputed in NumPy, the gradient of the policy, what moves and when."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.off_policy.small_learners import SAC, TD3, built, off_policy_config
from whet.control.off_policy.replay import Transitions
from whet.train.off_policy import updates
from whet.train.off_policy.updates import Batch, Tally, deterministic_update, in_unit_bounds, soft_update

N = 8


def batch_of(learner, seed=0):
    rng = np.random.default_rng(seed)
    drawn = Transitions(
        observations=rng.normal(size=(N, 1)).astype(np.float32),
        actions=rng.uniform(-1, 1, (N, 1)).astype(np.float32),
        rewards=rng.normal(size=N).astype(np.float32),
        next_observations=rng.normal(size=(N, 1)).astype(np.float32),
        terminated=rng.random(N) < 0.4,
    )
    return Batch.of(drawn, learner.policy)


def numpy_network(network, rows):
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            rows = rows @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
        else:
            rows = np.maximum(rows, 0)
    return rows


def numpy_twins(critics, rows, actions):
    both = np.concatenate([rows, actions], axis=1)
    return np.stack([numpy_network(twin, both)[:, 0] for twin in critics.twins])


def numpy_policy(policy, rows):
    return numpy_network([*policy.actor, policy.head], rows)


def as_numpy(batch):
    names = ("rows", "actions", "rewards", "next_rows", "terminated")
    return {name: getattr(batch, name).double().numpy() for name in names}


def critic_loss(values, target):
    return sum(((one - target) ** 2).mean() for one in values) / 2


def test_the_loss_of_sac_against_numpy():
    """The squashed Gaussian's log-prob from its definition: that of the number less log |d tanh/du|."""
    learner = built(off_policy_config("AimedReward", algorithm=SAC | {"entropy_coefficient": 0.3, "gamma": 0.9}))
    batch, tally = batch_of(learner), Tally()
    given = as_numpy(batch)
    mean, log_std = np.split(numpy_policy(learner.policy, given["next_rows"]), 2, axis=1)
    log_std = log_std.clip(-5, 2)
    noise = torch.randn(2, N, 1, generator=torch.Generator().manual_seed(3)).double().numpy()[1]
    u = mean + np.exp(log_std) * noise
    logprobs = (-(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2 - np.log(1 - np.tanh(u) ** 2))[:, 0]
    beyond = numpy_twins(learner.critics.targets, given["next_rows"], np.tanh(u)).min(axis=0) - 0.3 * logprobs
    target = given["rewards"] + 0.9 * (1 - given["terminated"]) * beyond
    expected = critic_loss(numpy_twins(learner.critics.critics, given["rows"], given["actions"]), target)
    soft_update(
        learner.policy, learner.parts.optimizer, learner.critics, batch, torch.Generator().manual_seed(3), tally
    )
    assert tally.metrics()["q/loss"] == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_td3_against_numpy():
    learner = built(off_policy_config("AimedReward", algorithm=TD3 | {"target_noise": 0.4, "gamma": 0.9}))
    batch, tally = batch_of(learner), Tally()
    given = as_numpy(batch)
    noise = torch.randn(N, 1, generator=torch.Generator().manual_seed(3)).double().numpy()
    chosen = np.tanh(numpy_policy(learner.critics.target_policy, given["next_rows"]))
    chosen = (chosen + (0.4 * noise).clip(-0.5, 0.5)).clip(-1, 1)
    beyond = numpy_twins(learner.critics.targets, given["next_rows"], chosen).min(axis=0)
    target = given["rewards"] + 0.9 * (1 - given["terminated"]) * beyond
    expected = critic_loss(numpy_twins(learner.critics.critics, given["rows"], given["actions"]), target)
    deterministic_update(
        learner.policy, learner.parts.optimizer, learner.critics, batch, torch.Generator().manual_seed(3), tally
    )
    assert tally.metrics()["q/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("algorithm", [SAC | {"entropy_coefficient": 0.3}, TD3], ids=["sac", "td3"])
def test_the_gradient_of_the_policy_against_finite_differences(algorithm):
    """Through the critic and, in SAC, through the sampled action and its log-prob."""
    learner = built(off_policy_config("AimedReward", algorithm=algorithm, policy={"widths": [5], "activation": "tanh"}))
    policy, critics = learner.policy.double(), learner.critics.critics.double()
    rows, noise = torch.randn(2, N, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss():
        parameters = policy.action_parameters(rows)
        if algorithm["preset"] == "td3":
            chosen = policy.distribution.mode(parameters)
            return updates.deterministic_policy_loss(critics(rows, chosen))
        unit = in_unit_bounds(policy)
        chosen = unit.sample(parameters, noise)
        logprobs = unit.logprobs(parameters, chosen)
        return updates.soft_policy_loss(torch.tensor(0.3), logprobs, critics(rows, chosen.tanh()))

    loss().backward()
    step = 1e-6
    for weight in policy.parameters():
        flat, gradient = weight.data.view(-1), weight.grad.view(-1)
        for place in range(0, len(flat), 3):
            kept = float(flat[place])
            flat[place] = kept + step
            above = loss().item()
            flat[place] = kept - step
            below = loss().item()
            flat[place] = kept
            assert float(gradient[place]) == pytest.approx((above - below) / (2 * step), abs=1e-6)


def state(module):
    return {name: one.clone() for name, one in module.state_dict().items()}


def moved(before, module):
    return any(not torch.equal(one, before[name]) for name, one in module.state_dict().items())


def test_td3_moves_policy_and_targets_at_every_second_update():
    learner = built(off_policy_config("AimedReward", algorithm=TD3))
    policy, critics = learner.policy, learner.critics
    for number in range(1, 5):
        before = [state(one) for one in (policy, critics.targets, critics.target_policy, critics.critics)]
        deterministic_update(
            policy, learner.parts.optimizer, critics, batch_of(learner, number), torch.Generator(), Tally()
        )
        parts = (policy, critics.targets, critics.target_policy)
        assert [moved(old, one) for old, one in zip(before[:3], parts, strict=True)] == [number % 2 == 0] * 3
        assert moved(before[3], critics.critics)


def test_sac_moves_targets_by_tau():
    learner = built(off_policy_config("AimedReward", algorithm=SAC | {"tau": 0.2}))
    before = [one.clone() for one in learner.critics.targets.parameters()]
    soft_update(learner.policy, learner.parts.optimizer, learner.critics, batch_of(learner), torch.Generator(), Tally())
    critics = learner.critics
    for old, target, one in zip(before, critics.targets.parameters(), critics.critics.parameters(), strict=True):
        assert torch.allclose(target, 0.8 * old + 0.2 * one, atol=1e-7)


def test_the_entropy_comes_to_its_target():
    """The coefficient grows or falls until the policy is as random as asked, whatever the scale of the rewards."""
    learner = built(off_policy_config("AimedReward", algorithm={"preset": "sac", "target_entropy": -0.5}))
    generator, entropies = torch.Generator().manual_seed(0), []
    for number in range(700):
        batch = batch_of(learner, number)
        batch = replace(batch, rewards=-8 * batch.actions[:, 0] ** 2, terminated=torch.ones(N))
        tally = Tally()
        soft_update(learner.policy, learner.parts.optimizer, learner.critics, batch, generator, tally)
        entropies.append(tally.metrics()["action_entropy"])
    assert np.mean(entropies[-200:]) == pytest.approx(-0.5, abs=0.25)
