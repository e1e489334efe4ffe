"""Advantages: TRL's own way from rewards (and old and reference log-probs) against our cells."""

import pytest

pytest.importorskip("trl", reason="trl is not installed: `make test-parity` has a venv with it")

import torch
from trl import RLOOConfig, RLOOTrainer

from tests.parity.ours import our_advantages
from tests.parity.tensors import random_tensors
from tests.parity.theirs import trl_scored, trl_trainer
from whet.algorithms import advantages
from whet.algorithms.table import ALGORITHMS

pytestmark = pytest.mark.parity

REWARDS = torch.tensor([[1.0, 0.0, 0.5, 2.0], [0.0, 0.0, 1.0, 0.0]])


def their_advantages(checkpoint, rewards, **settings):
    trainer = trl_trainer(checkpoint, rewards=rewards.flatten().tolist(), **settings)
    return trl_scored(trainer, random_tensors())["advantages"].view_as(rewards)


@pytest.mark.parametrize("preset", ["grpo", "dapo", "cispo", "sapo", "gspo"])
def test_standardised_within_the_group(checkpoint, preset):
    """TRL's ε is 1e-4 and fixed; with the same ε here the two are equal."""
    theirs = their_advantages(checkpoint, REWARDS)
    torch.testing.assert_close(our_advantages(preset, REWARDS, {"epsilon": 1e-4}), theirs, rtol=1e-6, atol=1e-7)


def test_our_epsilon_is_smaller(checkpoint):
    """A = (R − mean)/(σ + ε): 1e-4 in TRL, 1e-6 here. It shows where rewards hardly differ."""
    rewards = REWARDS * 1e-4
    deviation = rewards.std(dim=1, keepdim=True)
    expected = our_advantages("grpo", rewards) * (deviation + 1e-6) / (deviation + 1e-4)
    theirs = their_advantages(checkpoint, rewards)
    torch.testing.assert_close(theirs, expected, rtol=1e-5, atol=1e-7)
    assert theirs.abs().max() < 0.7 * our_advantages("grpo", rewards).abs().max()


def test_dr_grpo_of_trl_still_divides_by_the_deviation_unless_told(checkpoint):
    ours = our_advantages("dr_grpo", REWARDS)
    told = their_advantages(checkpoint, REWARDS, loss_type="dr_grpo", scale_rewards="none")
    torch.testing.assert_close(ours, told, rtol=1e-6, atol=1e-7)
    default = their_advantages(checkpoint, REWARDS, loss_type="dr_grpo")
    torch.testing.assert_close(default, ours / (REWARDS.std(dim=1, keepdim=True) + 1e-4), rtol=1e-6, atol=1e-7)


def test_scaling_by_the_batch_is_the_same(checkpoint):
    theirs = their_advantages(checkpoint, REWARDS, scale_rewards="batch")
    ours = advantages.batch_deviation(advantages.center(REWARDS), REWARDS, epsilon=1e-4)
    torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-7)


def test_equal_rewards_are_exactly_zero_here(checkpoint):
    """The mean of three times 0.9 is not 0.9 in fp32: TRL divides what is left by ε, we leave nothing."""
    rewards = torch.full((2, 3), 0.9)
    trainer = trl_trainer(
        checkpoint, rewards=rewards.flatten().tolist(), num_generations=3, per_device_train_batch_size=6
    )
    theirs = trl_scored(trainer, random_tensors().rows(slice(6)))["advantages"].view_as(rewards)
    left = rewards - rewards.nanmean(dim=1, keepdim=True)
    torch.testing.assert_close(theirs, left / 1e-4, rtol=0.01, atol=0)
    assert (our_advantages("grpo", rewards) == 0).all()


def test_leave_one_out(checkpoint):
    rloo = {"trainer": RLOOTrainer, "config": RLOOConfig}
    theirs = their_advantages(checkpoint, REWARDS, beta=0.0, **rloo)
    torch.testing.assert_close(our_advantages("rloo", REWARDS), theirs, rtol=1e-6, atol=1e-7)


def test_leave_one_out_of_rewards_less_kl(checkpoint):
    """Both take β·Σ_t (log π_old − log π_ref) out of the reward; TRL's β is 0.05 unless set, ours 0."""
    tensors, algorithm = random_tensors(), ALGORITHMS["rloo"]
    rewards = REWARDS.flatten().tolist()
    trainer = trl_trainer(checkpoint, trainer=RLOOTrainer, config=RLOOConfig, rewards=rewards)
    theirs = trl_scored(trainer, tensors)["advantages"].view_as(REWARDS)
    assert (algorithm.kl_place, algorithm.kl_coefficient, trainer.beta) == ("reward", 0.0, 0.05)
    penalty = (algorithm.kl(tensors.logprobs_old, tensors.logprobs_ref) * tensors.mask).sum(1).view_as(REWARDS)
    torch.testing.assert_close(our_advantages("rloo", REWARDS - 0.05 * penalty), theirs, rtol=1e-6, atol=1e-7)
    assert (penalty < 0).any()
