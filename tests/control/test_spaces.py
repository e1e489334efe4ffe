"""Observations as rows and actions as environments take them."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from whet.control.distributions import distribution_of
from whet.control.spaces import observation_coder
from whet.errors import UserError

spaces = gym.spaces


def coded(space, observation):
    coder = observation_coder(space)
    row = np.full(coder.size, np.nan, np.float32)
    coder.write(observation, row)
    return row.tolist()


@pytest.mark.parametrize(
    ("space", "observation", "row"),
    [
        (spaces.Discrete(3), 1, [0, 1, 0]),
        (spaces.Discrete(3, start=-1), np.int64(1), [0, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.Box(-9, 9, (2, 2)), np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 2, 3, 4]),
        (
            spaces.Dict({"b": spaces.Box(-9, 9, (1,)), "a": spaces.Discrete(2)}),
            {"a": 1, "b": np.array([0.5])},
            [0, 1, 0.5],
        ),
    ],
)
def test_observations(space, observation, row):
    assert coded(space, observation) == row


def test_a_picture_has_channels_first_and_numbers_up_to_one():
    space = spaces.Box(0, 255, (2, 1, 3), np.uint8)
    picture = np.array([[[255, 0, 51]], [[0, 102, 0]]], np.uint8)
    assert coded(space, picture) == pytest.approx([1, 0, 0, 0.4, 0.2, 0])
    assert observation_coder(space).picture == (3, 2, 1)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([2, 5], start=[1, -3]),
        spaces.MultiBinary(3),
        spaces.MultiBinary((2, 2)),
        spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64),
        spaces.Box(-np.inf, np.inf, (2, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("squash", [False, True])
def test_what_is_drawn_is_in_the_space(space, squash):
    if squash and isinstance(space, spaces.Box) and not space.is_bounded():
        with pytest.raises(UserError, match="squash needs bounds"):
            distribution_of(space, squash=True)
        return
    distribution = distribution_of(space, squash=squash)
    parameters = torch.randn(200, distribution.parameters, generator=torch.Generator().manual_seed(0)) * 2
    noise = distribution.draw_noise((200,), torch.Generator().manual_seed(1))
    for actions in (distribution.sample(parameters, noise), distribution.mode(parameters)):
        taken = distribution.for_environment(actions.numpy())
        dtype = getattr(space, "dtype", None)
        assert all(space.contains(np.asarray(one, dtype) if space.shape else one) for one in taken)


def test_unknown_spaces_are_named():
    with pytest.raises(UserError, match="Text"):
        observation_coder(spaces.Text(3))
    with pytest.raises(UserError, match="Text"):
        distribution_of(spaces.Text(3))
