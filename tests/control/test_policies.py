"""Networks: what they see and do not see, orthogonal starts, what a saved policy holds."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from whet.control.distributions import distribution_of
from whet.control.policies import Policy, PolicyShape, read_weights
from whet.control.spaces import observation_coder
from whet.errors import UserError

TWO = gym.spaces.Discrete(2)
PAIR = gym.spaces.Box(-9, 9, (2,))


def policy_of(shape, observations=PAIR, actions=TWO, **options):
    torch.manual_seed(0)
    return Policy(shape, observation_coder(observations), distribution_of(actions), has_critic=True, **options)


def test_an_orthogonal_start():
    policy = policy_of(PolicyShape(widths=(32, 32)))
    inner = policy.actor[2].weight
    assert torch.allclose(inner @ inner.T, 2 * torch.eye(32), atol=1e-5)
    assert policy.head.weight.norm(dim=1).tolist() == pytest.approx([0.01, 0.01])
    assert policy.value_head.weight.norm().item() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [8, 40])
def test_pictures(size):
    space = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
    policy = policy_of(PolicyShape(kind="cnn", shared=True), space)
    seen = policy.pass_over(torch.rand(5, 3 * size * size))
    parameters, values = seen.parameters, seen.values
    assert (parameters.shape, values.shape) == ((5, 2), (5,))
    with pytest.raises(UserError, match="not pictures"):
        policy_of(PolicyShape(kind="cnn"))


def test_a_transformer_does_not_see_what_was_before_the_episode():
    shape = PolicyShape(kind="transformer", widths=(16,), history=4, heads=2, layers=2, normalize=True)
    policy = policy_of(shape).eval()
    assert policy.normalizer is not None
    policy.normalizer.moments.add(torch.randn(50, 12, generator=torch.Generator().manual_seed(1)) + 3)
    rows = torch.randn(2, 4, 3)
    rows[:, :, 2] = torch.tensor([0.0, 0.0, 1.0, 1.0])
    other = rows.clone()
    other[:, :2, :2] += 5.0  # before the episode
    newer = rows.clone()
    newer[:, 2, :2] += 1.0
    with torch.no_grad():
        one, two, three = (policy.action_parameters(policy.seen(x.view(2, -1))) for x in (rows, other, newer))
    assert torch.equal(one, two)
    assert not torch.allclose(one, three)


@pytest.mark.parametrize("is_of_state", [False, True])
def test_the_deviation_of_gaussian_actions(is_of_state):
    actions = gym.spaces.Box(-1, 1, (3,))
    policy = policy_of(PolicyShape(log_std=-0.7, state_std=is_of_state), actions=actions)
    with torch.no_grad():
        found = policy.action_parameters(torch.randn(6, 2))[:, 3:]
    assert found.tolist() == pytest.approx(np.full((6, 3), -0.7), abs=0.1 if is_of_state else 1e-6)
    assert bool((found[0] == found[1]).all()) is not is_of_state


def test_a_saved_policy_is_complete(tmp_path):
    shape = PolicyShape(normalize=True)
    policy, other = policy_of(shape), policy_of(shape)
    policy.normalizer.moments.add(torch.randn(9, 2))
    policy.save(tmp_path)
    other.load_state_dict(read_weights(tmp_path))
    rows = torch.randn(4, 2)
    with torch.no_grad():
        assert torch.equal(policy.values(policy.seen(rows)), other.values(other.seen(rows)))
