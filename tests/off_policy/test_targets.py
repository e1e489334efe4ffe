"""Targets and losses of SAC and TD3 by hand, against NumPy and against finite differences."""

import numpy as np
import pytest
import torch

from whet.algorithms import off_policy

REWARDS, TERMINATED = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 1.0, 0.0])
NEXT_VALUES = torch.tensor([[4.0, 100.0, -2.0], [3.0, 50.0, 6.0]])


def test_a_soft_target_by_hand():
    """1 + 0.9 (3 − 0.5·(−2)) = 4.6; a terminated transition is its reward; −1 + 0.9 (−2 − 0.5·4) = −4.6."""
    logprobs = torch.tensor([-2.0, 7.0, 4.0])
    found = off_policy.soft_target(REWARDS, TERMINATED, NEXT_VALUES, logprobs, torch.tensor(0.5), gamma=0.9)
    assert found.tolist() == pytest.approx([4.6, 2.0, -4.6])


def test_a_clipped_target_by_hand():
    found = off_policy.clipped_target(REWARDS, TERMINATED, NEXT_VALUES, gamma=0.9)
    assert found.tolist() == pytest.approx([1 + 0.9 * 3, 2.0, -1 - 0.9 * 2])


def test_noise_on_the_actions_of_targets_is_cut_twice():
    """0.2·4 is cut to 0.5, 0.9 + 0.5 to 1, and −0.9 − 0.5 to −1."""
    found = off_policy.smoothed_actions(
        torch.tensor([[0.0, 0.9, -0.3, -0.9]]), torch.tensor([[4.0, 4.0, -1.0, -4.0]]), deviation=0.2, clip=0.5
    )
    assert found.tolist()[0] == pytest.approx([0.5, 1.0, -0.5, -1.0])


def test_losses_by_hand():
    values, targets = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0.0, 4.0])
    assert float(off_policy.twin_loss(values, targets)) == pytest.approx(((1 + 4) / 2 + (9 + 16) / 2) / 2)
    logprobs = torch.tensor([-1.0, 2.0])
    found = off_policy.soft_policy_loss(torch.tensor(0.1), logprobs, values)
    assert float(found) == pytest.approx(((-0.1 - 1) + (0.2 - 0)) / 2)
    assert float(off_policy.deterministic_policy_loss(torch.tensor([[1.0, 4.0], [3.0, 0.0]]))) == -2.5


@pytest.mark.parametrize(("logprob", "rises"), [(3.0, True), (-3.0, False)])
def test_the_entropy_coefficient_rises_while_the_entropy_is_below_its_target(logprob, rises):
    """The entropy is −log π: at −3 it is below a target of −1, at 3 above."""
    log_alpha = torch.zeros((), requires_grad=True)
    off_policy.temperature_loss(log_alpha, torch.tensor([logprob]), target=-1.0).backward()
    assert (log_alpha.grad < 0) == rises
    assert abs(float(log_alpha.grad)) == abs(logprob - 1)


def test_the_loss_of_the_entropy_coefficient_is_a_mean_that_leaves_the_policy_alone():
    log_alpha, logprobs = torch.zeros((), requires_grad=True), torch.tensor([1.0, 4.0], requires_grad=True)
    off_policy.temperature_loss(log_alpha, logprobs, target=-1.0).backward()
    assert log_alpha.grad == -1.5
    assert logprobs.grad is None


def test_targets_against_numpy():
    rng = np.random.default_rng(0)
    rewards, logprobs = rng.normal(size=(2, 50))
    values, terminated = rng.normal(size=(2, 50)), rng.random(50) < 0.3
    expected = []
    for i in range(50):
        beyond = min(values[0, i], values[1, i]) - 0.3 * logprobs[i]
        expected.append(rewards[i] + (0 if terminated[i] else 0.97 * beyond))
    arguments = [torch.from_numpy(one) for one in (rewards, terminated.astype(float), values, logprobs)]
    found = off_policy.soft_target(*arguments, torch.tensor(0.3, dtype=torch.float64), gamma=0.97)
    assert found.numpy() == pytest.approx(np.array(expected), abs=1e-12)


def test_targets_move_by_their_share():
    targets, trained = [torch.tensor([0.0, 4.0])], [torch.tensor([1.0, 0.0])]
    off_policy.move_towards(targets, trained, tau=0.25)
    assert targets[0].tolist() == [0.25, 3.0]
