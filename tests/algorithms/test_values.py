"""Rewards per token, generalised advantages and the critic's loss, by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.algorithms.advantages import explained_variance, gae, to_go, token_rewards, value_loss

pytestmark = pytest.mark.usefixtures("double")
# prompt, two tokens, the answer of a tool, one more token, padding
GAP = torch.tensor([[False, True, True, False, True, False]])
CUT_OFF = torch.zeros_like(GAP)


def test_the_reward_stands_on_the_last_trained_token_and_penalties_on_every_one():
    mask = torch.cat([GAP, CUT_OFF, torch.tensor([[False, True, False, False, False, False]])])
    penalties = torch.full(mask.shape, 0.5)
    assert token_rewards(torch.tensor([3.0, 7.0, -1.0]), penalties, mask).tolist() == [
        [0.0, -0.5, -0.5, 0.0, 2.5, 0.0],
        [0.0] * 6,
        [0.0, -1.5, 0.0, 0.0, 0.0, 0.0],
    ]


def test_gae_by_hand():
    # gamma 0.5, lam 0.5; rewards 1, 2, 4; values 3, 5, 7; nothing is expected after the end.
    mask = torch.ones(1, 3, dtype=torch.bool)
    rewards, values = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[3.0, 5.0, 7.0]])
    # errors: 4 − 7 = −3; 2 + 3.5 − 5 = 0.5; 1 + 2.5 − 3 = 0.5
    # advantages: −3; 0.5 + 0.25·(−3) = −0.25; 0.5 + 0.25·(−0.25) = 0.4375
    assert gae(rewards, values, mask, gamma=0.5, lam=0.5).tolist() == [[0.4375, -0.25, -3.0]]


def test_gae_of_a_single_column():
    one = torch.ones(2, 1, dtype=torch.bool)
    assert gae(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [2.0]]), one).tolist() == [[2.0], [-1.0]]


def test_time_does_not_pass_over_what_a_tool_wrote():
    rewards = torch.tensor([[9.0, 1.0, 2.0, 9.0, 4.0, 9.0]])
    values = torch.tensor([[9.0, 3.0, 5.0, 9.0, 7.0, 9.0]])
    found = gae(rewards, values, GAP, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0.0, 0.4375, -0.25, 0.0, -3.0, 0.0]]


def test_at_lam_zero_gae_is_the_error_of_one_step_and_at_lam_one_the_return_less_the_value():
    rewards, values = torch.randn(4, 6), torch.randn(4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool)
    following = torch.cat([values[:, 1:], torch.zeros(4, 1)], dim=1)
    assert torch.allclose(gae(rewards, values, mask, gamma=0.9, lam=0.0), rewards + 0.9 * following - values)
    assert torch.allclose(gae(rewards, values, mask, lam=1.0), rewards.flip(1).cumsum(1).flip(1) - values)


@given(st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_sum_it_is_defined_as(gamma, lam):
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(1, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    r, v = rewards[0].tolist(), [*values[0].tolist(), 0.0]
    errors = [r[t] + gamma * v[t + 1] - v[t] for t in range(5)]
    wanted = [sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, 5)) for t in range(5)]
    found = gae(rewards, values, torch.ones(1, 5, dtype=torch.bool), gamma=gamma, lam=lam)
    assert found[0].tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_to_go_is_what_is_still_to_be_earned():
    rewards = torch.tensor([[9.0, 1.0, 2.0, 9.0, 4.0, 9.0]])
    assert to_go(rewards, GAP).tolist() == [[0.0, 7.0, 6.0, 0.0, 4.0, 0.0]]
    assert to_go(rewards, GAP, gamma=0.5).tolist() == [[0.0, 3.0, 4.0, 0.0, 4.0, 0.0]]


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        (1.1, 0.5 * 0.9**2, -0.9),  # within the clip: the plain square
        (1.9, 0.5 * 0.8**2, 0.0),  # ran beyond 1.2 towards the target 2: no more pull
        (0.5, 0.5 * 1.5**2, -1.5),  # ran away from it: pulled back in full
        (3.5, 0.5 * 1.5**2, 1.5),  # overshot by more than the clip leaves: pulled back in full
    ],
)
def test_value_loss_is_the_worse_of_plain_and_clipped(value, loss, slope):
    values = torch.tensor(value, requires_grad=True)
    found = value_loss(values, torch.tensor(1.0), torch.tensor(2.0), clip=0.2)
    (gradient,) = torch.autograd.grad(found, values)
    assert (found.item(), gradient.item()) == (pytest.approx(loss), pytest.approx(slope))


def test_value_loss_is_clipped_below_the_old_value_too():
    # From 1 towards −1, held at 1 − 0.2 and at 1 − 1; what is nearer to the target than that costs no less.
    for clip, held in ((0.2, 0.8), (1.0, 0.0)):
        found = value_loss(torch.tensor(-0.5), torch.tensor(1.0), torch.tensor(-1.0), clip=clip)
        assert float(found) == pytest.approx((held + 1) ** 2 / 2)


def test_value_loss_without_a_clip_is_half_the_square():
    assert float(value_loss(torch.tensor(5.0), torch.tensor(1.0), torch.tensor(2.0), clip=0.0)) == 4.5
    assert float(value_loss(torch.tensor(2.0), torch.tensor(1.0), torch.tensor(2.0), clip=0.0)) == 0.0


def test_explained_variance_of_a_perfect_a_constant_and_an_inverted_critic():
    targets = torch.tensor([[1.0, 2.0, 3.0, 4.0, 9.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    assert explained_variance(targets, targets, mask) == 1.0
    assert explained_variance(torch.full_like(targets, 7.0), targets, mask) == pytest.approx(0.0)
    assert explained_variance(-targets, targets, mask) == pytest.approx(-3.0)  # errors twice as wide: 1 − 4
    half = torch.tensor([[1.5, 1.5, 3.5, 3.5, 0.0]])  # errors ±0.5: 1 − 0.25/1.25
    assert explained_variance(half, targets, mask) == pytest.approx(0.8)
    assert explained_variance(half / 10, targets / 10, mask) == pytest.approx(0.8)  # whatever the scale


def test_explained_variance_is_zero_where_there_is_nothing_to_explain():
    ones = torch.ones(1, 3)
    assert explained_variance(ones * 2, ones, torch.ones(1, 3, dtype=torch.bool)) == 0.0
    assert explained_variance(ones * 2, ones, torch.zeros(1, 3, dtype=torch.bool)) == 0.0
