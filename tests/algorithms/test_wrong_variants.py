"""Mistakes of published code, put in on purpose: the claims of the other files tell each from the real one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from whet.algorithms.advantages import center, leave_one_out, standardize
from whet.algorithms.policy_loss import budget_mean, sequence_clip, sequence_mean, token_mean
from whet.algorithms.table import ALGORITHMS

from . import composed, oracle
from .batches import random_case
from .tabular import any_values, close, cosine, expected_gradient, graded, policy, ppo, true_gradient, world

pytestmark = pytest.mark.usefixtures("double")
SPACE = world(2)
LOGITS, REWARDS = policy(SPACE, 19), graded(SPACE, 19)


def agrees_with_the_oracle(algorithm, name, seed=0):
    case = random_case(seed)
    wanted = oracle.step_loss(oracle.prepare(oracle.ROWS[name], case), case.new)
    return composed.step_loss(algorithm, case)[0].item() == pytest.approx(wanted, rel=1e-10)


def test_a_dr_grpo_that_divides_by_length_is_caught():
    right = ALGORITHMS["dr_grpo"]
    wrong = replace(right, weighting=sequence_mean)
    assert agrees_with_the_oracle(right, "dr_grpo")
    assert not agrees_with_the_oracle(wrong, "dr_grpo")
    true = true_gradient(SPACE, LOGITS, REWARDS)
    assert cosine(expected_gradient(right, SPACE, LOGITS, REWARDS, group=2), true) == pytest.approx(1, abs=1e-12)
    assert cosine(expected_gradient(wrong, SPACE, LOGITS, REWARDS, group=2), true) < 0.99


def test_a_dr_grpo_that_divides_by_the_longest_of_the_batch_is_caught():
    """The normaliser then depends on what was sampled."""

    def longest(mask, max_tokens):
        return budget_mean(mask, int(mask.sum(dim=1).max()))

    space, wrong = world(3), replace(ALGORITHMS["dr_grpo"], weighting=longest)
    logits, rewards = policy(space, 18), graded(space, 18)
    true = true_gradient(space, logits, rewards)
    for row, exact in ((ALGORITHMS["dr_grpo"], True), (wrong, False)):
        found = expected_gradient(row, space, logits, rewards, group=2)
        assert (cosine(found, true) > 1 - 1e-9) is exact


@pytest.mark.parametrize(("advantage", "row"), [(center, "dr_grpo"), (standardize, "grpo"), (leave_one_out, "rloo")])
def test_a_group_mean_that_includes_other_groups_is_caught(advantage, row):
    def over_everything(rewards):
        return advantage(rewards.reshape(1, -1)).reshape(rewards.shape)

    mine, others = torch.tensor([[1.0, 0.0, 0.5]]), (torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[9.0, 7.0, 8.0]]))
    right, wrong = ([cell(torch.cat([mine, other]))[0] for other in others] for cell in (advantage, over_everything))
    assert torch.equal(*right), "what other prompts earn is no part of a group's advantage"
    assert not torch.allclose(*wrong)
    assert not agrees_with_the_oracle(replace(ALGORITHMS[row], advantage=over_everything), row)


def test_a_group_mean_of_half_a_group_is_caught():
    """A baseline computed inside a micro-batch that holds only a part of the group."""

    def in_halves(rewards):
        return center(rewards.reshape(-1, rewards.shape[1] // 2)).reshape(rewards.shape)

    assert not agrees_with_the_oracle(replace(ALGORITHMS["dr_grpo"], advantage=in_halves), "dr_grpo")


def test_gspo_over_tokens_weighs_sequences_by_their_length():
    """One loss per sequence, written on all its tokens: with a vote per token a long sequence votes T times."""
    mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
    logprobs, old = torch.full((2, 4), -1.0), torch.full((2, 4), -1.0)
    advantages = torch.tensor([[3.0], [1.0]]).expand(2, 4)
    per_token = sequence_clip(logprobs, old, advantages, mask)
    losses = {}
    for weighting in (sequence_mean, token_mean):
        weights, count = weighting(mask)
        losses[weighting] = float((per_token * weights).sum() / count)
    assert losses[sequence_mean] == pytest.approx(-(3 + 1) / 2)
    assert losses[token_mean] == pytest.approx(-(1 * 3 + 4 * 1) / 5)
    assert not agrees_with_the_oracle(replace(ALGORITHMS["gspo"], weighting=token_mean), "gspo")


def test_a_normaliser_per_micro_batch_is_caught():
    """Dividing each micro-batch by its own tokens gives short sequences more votes than long ones."""
    case = random_case(1)
    mask, per_token = torch.tensor(case.mask), torch.tensor(np.where(case.mask, case.new, 0.0))
    weights, count = token_mean(mask)
    whole = float((per_token * weights).sum() / count)
    right, wrong, parts = 0.0, 0.0, mask.split(5)
    for part, losses in zip(parts, per_token.split(5), strict=True):
        own, tokens = token_mean(part)
        right += float((losses * own).sum() / count)
        wrong += float((losses * own).sum() / tokens) / len(parts)
    assert right == pytest.approx(whole, rel=1e-12)
    assert abs(wrong - whole) > 1e-3


def test_a_ratio_that_lets_the_gradient_through_twice_is_caught():
    """CISPO without the stop: ρ·log π has another gradient, though the same value."""

    def leaking(logprobs, logprobs_old, advantages, *, low=1.0, high=4.0):
        return -(logprobs - logprobs_old).exp().clamp(1 - low, 1 + high) * advantages * logprobs

    case, found = random_case(2), []
    for algorithm in (ALGORITHMS["cispo"], replace(ALGORITHMS["cispo"], surrogate=leaking)):
        loss, logprobs = composed.step_loss(algorithm, case)
        found.append((loss.item(), torch.autograd.grad(loss, logprobs)[0]))
    (value, right), (other_value, wrong) = found
    assert value == pytest.approx(other_value)
    assert not torch.allclose(right, wrong)


def test_a_clip_without_its_minimum_is_caught():
    """clip(ρ)·A alone stops pulling back tokens that went the wrong way."""

    def clamped(logprobs, logprobs_old, advantages):
        return -(logprobs - logprobs_old).exp().clamp(0.8, 1.2) * advantages

    assert not agrees_with_the_oracle(replace(ALGORITHMS["grpo"], surrogate=clamped), "grpo")


def test_values_one_position_late_bias_ppo():
    """V after token t in the place of V before it depends on the token, so it is no baseline any more."""
    space = world(3)
    logits, rewards, values = policy(space, 5), graded(space, 5), any_values(space, 5)
    true = true_gradient(space, logits, rewards)
    assert close(expected_gradient(ppo(1.0), space, logits, rewards, values=values), true)

    def late(drawn):
        states = space.states[torch.tensor(drawn)]
        following = torch.cat([states[:, 1:], states[:, :1]], dim=1)
        return {"values": values[0][following]}

    assert not close(expected_gradient(ppo(1.0), space, logits, rewards, extra=late), true)
