"""Batched environments: Gymnasium's dynamics, the same episodes as functions of seeds, runs that are resumed."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.control.small_runs import built, control_config, one_step, run_of
from whet.control.batched import CartPole, batched_environment, play_batched
from whet.errors import UserError
from whet.train.control.batched_collector import BatchedCollector

COPIES = {"environments": 64, "length": 24}


def test_dynamics_are_those_of_gymnasium():
    """The same states and actions, step by step, through the ends of episodes."""
    rng, other, ours = np.random.default_rng(0), gym.make("CartPole-v1").unwrapped, CartPole()
    other.reset(seed=0)
    limits = np.array([3.0, 3.0, 0.3, 3.0])
    states, actions = rng.uniform(-limits, limits, (2000, 4)), rng.integers(0, 2, 2000)
    following, rewards, terminated = ours.step(torch.from_numpy(states), torch.from_numpy(actions)[:, None])
    observations = ours.observe(following)
    for i in range(len(states)):
        other.state, other.steps_beyond_terminated = states[i], None
        row, reward, is_over, _, _ = other.step(int(actions[i]))
        np.testing.assert_allclose(following[i].numpy(), other.state, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(observations[i].numpy(), row, rtol=1e-6)
        assert (float(rewards[i]), bool(terminated[i])) == (reward, is_over)
    assert 0.2 < float(terminated.float().mean()) < 0.9
    assert ours.observation_space == other.observation_space
    assert ours.action_space == other.action_space


def test_an_episode_agrees_with_gymnasium_from_its_start():
    ours, other = CartPole(), gym.make("CartPole-v1").unwrapped
    other.reset(seed=0)
    states = ours.begin(torch.tensor([11]))
    other.state = states[0].numpy()
    for _ in range(200):
        action = int(other.state[2] + 0.3 * other.state[3] > 0)
        states, _, terminated = ours.step(states, torch.tensor([[action]]))
        _, _, is_over, _, _ = other.step(action)
        np.testing.assert_allclose(states[0].numpy(), other.state, rtol=1e-9, atol=1e-12)
        assert bool(terminated) == is_over
        if is_over:
            break


def test_starts_are_uniform_and_functions_of_their_seed():
    states = CartPole().begin(torch.arange(20_000))
    assert torch.equal(states[7:9], CartPole().begin(torch.tensor([7, 8])))
    assert states.abs().max() < 0.05
    assert states.mean(dim=0).abs().max() < 0.002
    torch.testing.assert_close(states.std(dim=0), torch.full((4,), 0.05 / 3**0.5).double(), rtol=0.02, atol=0)
    assert torch.corrcoef(states.T).fill_diagonal_(0).abs().max() < 0.03


def test_a_rollout_is_made_of_the_episodes():
    control = built(control_config("x", environment="torch:CartPole", rollout=COPIES))
    assert isinstance(control.collector, BatchedCollector)
    first, second = control.collector.collect(1), control.collector.collect(2)
    for rollout in (first, second):
        assert rollout.count == 64 * 24
        assert rollout.returns == [float(length) for length in rollout.lengths]
        rows, last = rollout.observations, rollout.fragments.last
        follows = torch.ones(rollout.count, dtype=torch.bool)
        follows[last] = False
        moved = rows[1:, 0] - (rows[:-1, 0] + 0.02 * rows[:-1, 1])
        assert moved[follows[:-1]].abs().max() < 1e-6
        ended = rollout.ended.T.reshape(-1)[last]
        assert (~ended).nonzero()[:, 0].tolist() == rollout.cut.tolist()
    open_ones = ~first.ended[-1]
    beyond = first.beyond[first.fragments.last[first.cut] % 24 == 23]
    assert torch.equal(beyond, second.observations.view(64, 24, 4)[open_ones, 0])


def test_an_episode_is_truncated_and_what_follows_is_kept():
    where = {"name": "torch:CartPole", "max_steps": 5}
    rollout = built(control_config("x", environment=where, rollout=COPIES)).collector.collect(1)
    assert set(rollout.lengths) == {5}
    assert len(rollout.cut) == 64 * 5  # 4 episodes and the rest of each copy
    moved = rollout.beyond[:, 0] - (
        rollout.observations[rollout.fragments.last[rollout.cut]] @ torch.tensor([1, 0.02, 0, 0])
    )
    assert moved.abs().max() < 1e-6


def test_evaluation_is_of_each_seed():
    policy = built(control_config("x", environment="torch:CartPole")).policy
    together = play_batched(policy, CartPole(), [1, 3, 5], max_steps=30)
    assert together == [play_batched(policy, CartPole(), [seed], max_steps=30)[0] for seed in (1, 3, 5)]
    assert all(one.reward == one.length <= 30 for one in together)


def test_a_resumed_run_has_the_same_bytes():
    config = control_config("x", environment="torch:CartPole", rollout=COPIES, normalize={"rewards": True})
    whole, stopped, resumed = built(config), built(config), built(config)
    for step in (1, 2):
        one_step(whole, config, step)
        one_step(stopped, config, step)
    resumed.policy.load_state_dict(stopped.policy.state_dict())
    for name in ("collector", "scale"):
        old, new = getattr(stopped, name), getattr(resumed, name)
        new.restore(old.numbers(), {key: one.clone() for key, one in old.tensors().items()})
    expected, found = whole.collector.collect(3), resumed.collector.collect(3)
    for name in ("observations", "actions", "rewards", "beyond"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert resumed.collector.metrics() == whole.collector.metrics()
    assert torch.equal(resumed.scale(found), whole.scale(expected))


def test_a_run_learns(tmp_path):
    config = control_config(
        "x",
        environment="torch:CartPole",
        steps=25,
        rollout={"environments": 64, "length": 32},
        update={"epochs": 4, "minibatch": 512},
        algorithm={"preset": "ppo", "gae": {"gamma": 0.98, "lam": 0.9}},
        eval={"every_steps": 25, "episodes": 20},
    )
    rows = run_of(config, tmp_path / "run").metrics()
    assert rows[0]["eval/reward"] < 60
    assert rows[-1]["eval/reward"] > 150


def test_own_batched_environments_and_refusals(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from whet.control.batched import CartPole\nclass Long(CartPole):\n    max_steps = 7\n")
    control = built(control_config("x", environment=f"{file}:Long", rollout=COPIES))
    assert max(control.collector.collect(1).lengths) == 7
    assert batched_environment("CartPole-v1", {}) is None
    with pytest.raises(UserError, match=r"no such batched environment.*torch:CartPole"):
        batched_environment("torch:Cartpole", {})
    with pytest.raises(UserError, match="unexpected keyword"):
        batched_environment("torch:CartPole", {"wind": 1})
    with pytest.raises(UserError, match=r"needs policy.history=1 and rollout.processes=1"):
        built(
            control_config(
                "x",
                environment="torch:CartPole",
                rollout={"environments": 2, "length": 2, "processes": 2},
                policy={"kind": "transformer", "history": 4, "widths": [16], "heads": 2},
            )
        )
