"""Overlong ramp and running normalisation of rewards, by hand."""

import pytest
import torch

from whet.algorithms.advantages import mean_and_deviation, moments, overlong, standard


def test_overlong_falls_from_zero_to_minus_one_over_the_ramp_and_stays_there():
    counts = torch.tensor([[1, 12, 14], [16, 20, 25]])
    assert overlong(counts, max_tokens=20, ramp=8).tolist() == [[0.0, 0.0, -0.25], [-0.5, -1.0, -1.0]]


def test_overlong_never_rewards_a_short_answer():
    assert overlong(torch.arange(0, 13), max_tokens=20, ramp=8).abs().max() == 0


def test_moments_of_steps_add_up_to_those_of_all_rewards():
    first, second = torch.tensor([[1.0, 3.0]]), torch.tensor([[5.0, 7.0], [0.0, 2.0]])
    added = [a + b for a, b in zip(moments(first), moments(second), strict=True)]
    assert added == [6, 18.0, 88.0]
    mean, deviation = mean_and_deviation(*added)
    everything = torch.cat([first.flatten(), second.flatten()])
    assert mean == pytest.approx(float(everything.mean()))
    assert deviation == pytest.approx(float(everything.std(correction=0)))


def test_equal_rewards_have_no_deviation_and_before_the_first_step_there_is_neither():
    assert mean_and_deviation(*moments(torch.full((3, 4), 0.5))) == (0.5, 0.0)
    assert mean_and_deviation(0, 0.0, 0.0) == (0.0, 0.0)
    assert mean_and_deviation(*moments(torch.tensor([[3.0]]))) == (3.0, 0.0)
    # 0.1 is no binary fraction: the difference of two sums may come out below 0, and has no root.
    mean, deviation = mean_and_deviation(*moments(torch.full((7, 11), 0.1)))
    assert (mean, deviation) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-8))


def test_standard_subtracts_the_mean_and_divides_by_the_deviation():
    rewards = torch.tensor([[1.0, 3.0], [5.0, -1.0]])
    assert standard(rewards, 2.0, 4.0, epsilon=0.0).tolist() == [[-0.25, 0.25], [0.75, -0.75]]
    assert standard(rewards, 2.0, 0.5, epsilon=0.5).tolist() == [[-1.0, 1.0], [3.0, -3.0]]
    assert not standard(rewards, 2.0, 0.0).any()
