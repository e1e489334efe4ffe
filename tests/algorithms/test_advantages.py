"""Advantages, scalings and filters by hand, and what holds for all of them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.algorithms.advantages import (
    batch_deviation,
    best_over_worst,
    center,
    drop_zero_variance,
    keep_all,
    leave_one_out,
    max_likelihood,
    over_average,
    over_batch,
    over_greedy,
    over_length,
    over_valid,
    raw,
    standardize,
    unscaled,
    whiten,
)

groups = st.lists(st.lists(st.floats(-10, 10), min_size=4, max_size=4), min_size=1, max_size=5)
TWO = torch.tensor([[1.0, 0.0, 0.0, 1.0], [9.0, 9.0, 9.0, 5.0]])


def test_raw_has_no_baseline():
    assert torch.equal(raw(TWO), TWO)


def test_over_batch_subtracts_one_mean_from_all():
    # (2 + 32) / 8 = 4.25
    assert torch.equal(over_batch(TWO), TWO - 4.25)


def test_over_average_weighs_the_newest_step_most():
    # oldest first: (0.25·4 + 0.5·2 + 1·1) / (0.25 + 0.5 + 1) = 3/1.75
    found = over_average(torch.tensor([[2.0]]), torch.tensor([4.0, 2.0, 1.0]), decay=0.5)
    assert float(found) == pytest.approx(2 - 3 / 1.75)


def test_over_average_is_as_exact_as_what_it_is_given():
    history = [0.1 * k for k in range(30)]
    weights = [0.9**age for age in range(29, -1, -1)]
    wanted = 2 - math.fsum(w * h for w, h in zip(weights, history, strict=True)) / math.fsum(weights)
    found = over_average(torch.tensor([[2.0]]).double(), torch.tensor(history, dtype=torch.float64))
    assert float(found) == pytest.approx(wanted, rel=1e-14)


def test_over_average_has_no_baseline_before_the_first_step():
    assert torch.equal(over_average(TWO, torch.tensor([])), TWO)


def test_over_average_of_one_step_is_that_step_at_any_decay():
    for decay in (0.0, 0.5, 0.9, 1.0):
        assert torch.equal(over_average(TWO, torch.tensor([1.0]), decay=decay), TWO - 1)


def test_over_greedy_subtracts_what_the_likeliest_completion_of_the_same_prompt_earned():
    assert over_greedy(TWO, torch.tensor([1.0, 5.0])).tolist() == [[0.0, -1.0, -1.0, 0.0], [4.0, 4.0, 4.0, 0.0]]


def test_center_subtracts_the_mean_of_the_own_group_only():
    assert center(TWO).tolist() == [[0.5, -0.5, -0.5, 0.5], [1.0, 1.0, 1.0, -3.0]]


def test_leave_one_out_ignores_the_own_reward():
    advantages = leave_one_out(TWO)
    assert advantages[0, 0] == pytest.approx(1 - 1 / 3)  # the others: 0, 0, 1
    assert advantages[0, 1] == pytest.approx(0 - 2 / 3)  # the others: 1, 0, 1


def test_standardize_by_hand():
    # mean 0.5, deviation with Bessel's correction √(4 · 0.25 / 3)
    advantages = standardize(TWO, epsilon=0.0)
    assert advantages[0].tolist() == pytest.approx([math.sqrt(3) / 2 * s for s in (1, -1, -1, 1)])
    assert advantages[1].tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5])  # deviation √((1 + 1 + 1 + 9) / 3) = 2


def test_over_length_weighs_rewards_by_tokens():
    # (1·1 + 3·0 + 2·0 + 4·1) / 10 = 0.5 and (9·3 + 5·1) / 4 = 8
    counts = torch.tensor([[1, 3, 2, 4], [1, 1, 1, 1]])
    assert over_length(TWO, counts).tolist() == [[0.5, -0.5, -0.5, 0.5], [1.0, 1.0, 1.0, -3.0]]
    assert over_length(TWO, torch.tensor([[8, 0, 0, 0], [0, 0, 0, 1]]))[:, 0].tolist() == [0.0, 4.0]
    assert torch.equal(over_length(TWO, torch.zeros(2, 4)), TWO)  # no token, no baseline


def test_over_valid_makes_up_for_groups_without_signal():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    # one of three groups differs: α = 3
    assert over_valid(rewards).tolist() == [[1.5, -1.5], [0.0, 0.0], [0.0, 0.0]]
    assert not over_valid(rewards[1:]).any()


def test_max_likelihood_divides_by_the_share_of_right_answers():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0] * 4, [1.0] * 4])
    assert max_likelihood(rewards).tolist() == [
        [3.0, -1.0, -1.0, -1.0],
        [pytest.approx(1 / 3)] * 3 + [-1.0],
        [0.0] * 4,
        [0.0] * 4,
    ]


def test_max_likelihood_refuses_negative_rewards():
    with pytest.raises(ValueError, match="no reward may be below 0"):
        max_likelihood(torch.tensor([[1.0, -1.0]]))


def test_mixed_keeps_the_groups_whose_rewards_differ():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1e-6]])
    assert drop_zero_variance(rewards).tolist() == [True, False, False, True]
    assert keep_all(rewards).tolist() == [True] * 4


BASELINES = {
    "over_batch": over_batch,
    "center": center,
    "leave_one_out": leave_one_out,
    "standardize": standardize,
    "over_length": lambda rewards: over_length(rewards, torch.arange(1, rewards.shape[1] + 1).expand(rewards.shape)),
    "over_valid": over_valid,
    "max_likelihood": max_likelihood,
}


@pytest.mark.parametrize("cell", BASELINES)
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3])
@pytest.mark.parametrize("group", [3, 6, 7, 11])
def test_equal_rewards_give_exactly_zero(cell, reward, group):
    # 0.1 is not a binary fraction: its mean may differ in the last bit, and that bit is no signal.
    assert not BASELINES[cell](torch.full((3, group), reward)).any()


@pytest.mark.parametrize("cell", [name for name in BASELINES if name != "over_batch"])
def test_groups_of_equal_rewards_stay_without_signal_when_whitened(cell):
    """Each group is all alike, but not like the next: what rounding leaves must not be scaled up to one."""
    rewards = torch.tensor([[0.1] * 7, [0.3] * 7, [0.7] * 7])
    advantages = BASELINES[cell](rewards).reshape(-1, 1).expand(21, 3)
    assert not whiten(advantages, torch.ones(21, 3, dtype=torch.bool)).any()


def test_standardize_without_epsilon_is_zero_and_not_a_division_by_zero():
    assert not standardize(torch.full((2, 3), 0.1), epsilon=0.0).any()


MASK = torch.tensor([[False, True, True], [False, True, False]])
PER_TOKEN = torch.tensor([[100.0, 1.0, 2.0], [100.0, 6.0, 100.0]])  # mean 3, variance (4 + 1 + 9) / 3 on the mask


def test_unscaled_changes_nothing():
    assert torch.equal(unscaled(PER_TOKEN), PER_TOKEN)


def test_whiten_takes_mean_and_deviation_of_trained_tokens_only():
    found, deviation = whiten(PER_TOKEN, MASK), math.sqrt(14 / 3)
    assert found[MASK].tolist() == pytest.approx([-2 / deviation, -1 / deviation, 3 / deviation])
    assert not found[~MASK].any()
    assert float(found[MASK].mean()) == pytest.approx(0, abs=1e-6)
    assert float(found[MASK].std(correction=0)) == pytest.approx(1)


def test_best_over_worst_pushes_one_pair_apart_by_what_dpo_has_not_yet_learned():
    # w − l = log 9, so with β = ½ d = log 3, σ(−d) = 1/4, and of three rollouts 3·½·¼
    rewards = torch.tensor([[0.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    old = torch.zeros(6, 3)
    old[0, 1], old[1, 1:] = -math.log(3), torch.tensor([math.log(2), math.log(1.5)])
    mask = torch.tensor([[False, True, True]]).repeat(6, 1)
    reference = torch.where(mask, 0.0, -math.inf)  # what is off the mask is never read
    found = best_over_worst(rewards, old, reference, mask, beta=0.5)
    assert found.tolist() == [pytest.approx([-0.375, 0.375, 0.0]), [0.0, 0.0, 0.0]]


def test_best_over_worst_takes_the_first_of_equals_and_no_size():
    nothing, mask = torch.zeros(4, 1), torch.ones(4, 1, dtype=torch.bool)  # π is π_ref: σ(0) = ½
    for rewards in ([[0.5, 1.0, 0.0, 1.0]], [[7.0, 9.0, -3.0, 9.0]]):
        found = best_over_worst(torch.tensor(rewards), nothing, nothing, mask)
        assert found.tolist() == [pytest.approx([0.0, 4 * 0.1 / 2, -4 * 0.1 / 2, 0.0])]


def test_whiten_of_equal_advantages_or_of_nothing_is_zero():
    for count in (3, 6, 7, 11):  # 0.1 is not a binary fraction: the mean may differ in the last bit
        assert not whiten(torch.full((2, count), 0.1), torch.ones(2, count, dtype=torch.bool)).any()
    assert not whiten(torch.full((2, 3), 0.1), MASK).any()
    assert not whiten(PER_TOKEN, torch.zeros_like(MASK)).any()


def test_batch_deviation_divides_by_the_spread_of_all_rewards_also_between_groups():
    # Within each group the rewards are 1 apart, but over the batch 0, 1, 10, 11: mean 5.5, squares 101, over 3
    rewards = torch.tensor([[0.0, 1.0], [10.0, 11.0]])
    found = batch_deviation(center(rewards), rewards)
    assert found.tolist() == [pytest.approx([-0.5 / math.sqrt(101 / 3), 0.5 / math.sqrt(101 / 3)])] * 2


def test_batch_deviation_of_equal_rewards_is_zero():
    assert not batch_deviation(PER_TOKEN, torch.full((2, 3), 0.1)).any()


@given(groups)
def test_advantages_of_a_group_sum_to_zero(rows):
    rewards = torch.tensor(rows, dtype=torch.float64)
    for advantage in (center, leave_one_out, standardize):
        assert advantage(rewards).sum(dim=1).abs().max() < 1e-6


@given(groups)
def test_length_weighted_advantages_sum_to_zero_when_weighed_by_length(rows):
    rewards = torch.tensor(rows, dtype=torch.float64)
    counts = torch.tensor([3, 1, 4, 2]).expand(rewards.shape)
    assert (over_length(rewards, counts) * counts).sum(dim=1).abs().max() < 1e-9


@given(groups, st.floats(-5, 5))
def test_a_constant_added_to_every_reward_changes_nothing(rows, constant):
    rewards = torch.tensor(rows, dtype=torch.float64)
    for advantage in (center, leave_one_out, over_batch):
        assert torch.allclose(advantage(rewards), advantage(rewards + constant), atol=1e-9)
