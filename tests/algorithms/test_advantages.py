"""Advantages by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.algorithms.advantages import center, leave_one_out, raw, standardize

groups = st.lists(st.lists(st.floats(-10, 10), min_size=4, max_size=4), min_size=1, max_size=5)


def test_raw_has_no_baseline():
    rewards = torch.tensor([[1.0, 0.0]])
    assert torch.equal(raw(rewards), rewards)


def test_center_subtracts_the_mean_of_the_own_group_only():
    assert center(torch.tensor([[1.0, 0.0, 0.0, 1.0], [9.0, 9.0, 9.0, 5.0]])).tolist() == [
        [0.5, -0.5, -0.5, 0.5],
        [1.0, 1.0, 1.0, -3.0],
    ]


def test_leave_one_out_ignores_the_own_reward():
    advantages = leave_one_out(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    assert advantages[0, 0] == pytest.approx(1 - 1 / 3)  # the others: 0, 0, 1
    assert advantages[0, 1] == pytest.approx(0 - 2 / 3)  # the others: 1, 0, 1


def test_standardize_by_hand():
    # mean 0.5, deviation with Bessel's correction √(4 · 0.25 / 3)
    advantages = standardize(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), epsilon=0.0)
    assert advantages[0].tolist() == pytest.approx([math.sqrt(3) / 2 * s for s in (1, -1, -1, 1)])


def test_equal_rewards_give_exactly_zero():
    # 0.1 is not a binary fraction: its mean may differ in the last bit, and that bit is no signal.
    assert not standardize(torch.full((3, 7), 0.1)).any()


@given(groups)
def test_advantages_of_a_group_sum_to_zero(rows):
    rewards = torch.tensor(rows, dtype=torch.float64)
    for advantage in (center, leave_one_out, standardize):
        assert advantage(rewards).sum(dim=1).abs().max() < 1e-6


@given(groups, st.floats(-5, 5))
def test_a_constant_added_to_every_reward_changes_nothing(rows, constant):
    rewards = torch.tensor(rows, dtype=torch.float64)
    for advantage in (center, leave_one_out):
        assert torch.allclose(advantage(rewards), advantage(rewards + constant), atol=1e-9)
