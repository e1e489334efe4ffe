"""The oracles of the exercises agree with the library: what is learned is what whet does."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from whet.algorithms import advantages, policy_loss
from whet.algorithms.preference import losses, reward_losses
from whet.learn.language import attention_exercise, next_token_exercise
from whet.learn.policy_gradients import (
    bandit_exercise,
    baseline_exercise,
    gae_exercise,
    group_exercise,
    kl_exercise,
    ppo_exercise,
    return_exercise,
)
from whet.learn.preferences import dpo_exercise, pair_reward_exercise


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LENGTHS = torch.tensor([6, 3, 1])
MASK = torch.arange(6) < LENGTHS[:, None]
ROWS, MORE, THIRD = numbers(0, 3, 6), numbers(1, 3, 6), numbers(2, 3, 6)


def agrees(ours: Any, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs.double(), rtol=1e-6, atol=1e-9)


def test_advantages() -> None:
    rewards, mask = (ROWS * MASK).tolist(), MASK.tolist()
    agrees(return_exercise.returns(rewards, mask, 0.9), advantages.to_go(ROWS * MASK, MASK, gamma=0.9))
    found = gae_exercise.gae(rewards, MORE.tolist(), mask, 0.9, 0.8)
    agrees(found, advantages.gae(ROWS * MASK, MORE, MASK, gamma=0.9, lam=0.8))
    agrees(baseline_exercise.leave_one_out(ROWS.tolist()), advantages.leave_one_out(ROWS))
    agrees(group_exercise.grpo(ROWS.tolist()), advantages.standardize(ROWS))
    agrees(group_exercise.center(ROWS.tolist()), advantages.center(ROWS))


def test_policy_loss_and_averages() -> None:
    weights, count = policy_loss.token_mean(MASK)
    expected = (policy_loss.clip(ROWS, MORE, THIRD) * weights).sum() / count
    agrees(ppo_exercise.loss(ROWS.tolist(), MORE.tolist(), THIRD.tolist(), MASK.tolist(), 0.2), expected)
    for ours, theirs in (
        (group_exercise.token_mean, policy_loss.token_mean),
        (group_exercise.sequence_mean, policy_loss.sequence_mean),
    ):
        weights, count = theirs(MASK)
        agrees(ours(ROWS.tolist(), MASK.tolist()), (ROWS * weights).sum() / count)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_kl(name: str) -> None:
    ours: Callable[..., list[float]] = getattr(kl_exercise, name)
    agrees(ours(ROWS[0].tolist(), MORE[0].tolist()), getattr(policy_loss, name)(ROWS[0], MORE[0]))
    p = torch.distributions.Categorical(logits=ROWS[0])
    q = torch.distributions.Categorical(logits=MORE[0])
    agrees(kl_exercise.exact(ROWS[0].tolist(), MORE[0].tolist()), torch.distributions.kl_divergence(p, q))


def test_preferences() -> None:
    chosen, rejected, chosen_ref, rejected_ref = ROWS[0], ROWS[1], MORE[0], MORE[1]
    lists = [x.tolist() for x in (chosen, rejected, chosen_ref, rejected_ref)]
    expected = losses.dpo(chosen, rejected, chosen_ref, rejected_ref, beta=0.3).mean()
    agrees(dpo_exercise.loss_of(dpo_exercise.margin_of)(*lists, 0.3), expected)
    agrees(pair_reward_exercise.loss(*lists[:2]), reward_losses.bradley_terry(chosen, rejected, torch.zeros(6)).mean())


def test_language() -> None:
    heads = [numbers(seed, 2, 5, 4) for seed in range(3)]
    expected = scaled_dot_product_attention(*(x[None] for x in heads), is_causal=True)[0]
    agrees(attention_exercise.attention(*(x.tolist() for x in heads)), expected)
    logits, tokens = numbers(3, 3, 6, 5), torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(4))
    marks = MASK.clone()
    marks[:, 0] = False
    found = next_token_exercise.loss(logits.tolist(), tokens.tolist(), marks.tolist())
    agrees(found, cross_entropy(logits[:, :-1][marks[:, 1:]], tokens[:, 1:][marks[:, 1:]]))


def test_the_gradient_of_the_bandit_is_that_of_its_expected_reward() -> None:
    logits, rewards = numbers(5, 4).requires_grad_(), numbers(6, 4)
    (logits.softmax(dim=0) * rewards).sum().backward()
    assert logits.grad is not None
    agrees(bandit_exercise.gradient(logits.tolist(), rewards.tolist()), logits.grad)


def test_no_other_baseline_has_less_variance() -> None:
    draws = random.Random(7)
    logits, rewards = numbers(8, 4).tolist(), numbers(9, 4).tolist()
    best = baseline_exercise.best(logits, rewards)
    least = baseline_exercise.variance(logits, rewards, best)
    for _ in range(50):
        assert baseline_exercise.variance(logits, rewards, best + draws.gauss(0, 1)) > least


def test_the_variance_is_that_of_samples() -> None:
    logits, rewards = [0.3, -0.4, 0.8], [1.0, 0.0, 2.0]
    actions = torch.distributions.Categorical(logits=torch.tensor(logits)).sample((100_000,))
    estimates = (torch.tensor(rewards)[actions] - 0.7)[:, None] * (
        torch.eye(3)[actions] - torch.tensor(logits).softmax(dim=0)
    )
    exact = baseline_exercise.variance(logits, rewards, 0.7)
    assert math.isclose(float(estimates.var(dim=0).sum()), exact, rel_tol=0.05)
