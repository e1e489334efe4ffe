"""Surrogates and weightings by hand, and where the gradient of each ends."""

import math

import pytest
import torch

from whet.algorithms.policy_loss import (
    budget_mean,
    clip,
    dual_clip,
    geometric_clip,
    reinforce,
    sequence_clip,
    sequence_mean,
    sequence_sum,
    soft_gate,
    stopped_ratio,
    token_mean,
)

pytestmark = pytest.mark.usefixtures("double")


def at(surrogate, ratio, advantage, **options):
    """The loss and its slope along log π for one token with this ratio."""
    logprobs = torch.tensor([[math.log(ratio)]], requires_grad=True)
    terms = [logprobs, torch.zeros(1, 1), torch.full((1, 1), float(advantage))]
    if surrogate in (sequence_clip, geometric_clip):
        terms.append(torch.ones(1, 1, dtype=torch.bool))
    loss = surrogate(*terms, **options)
    (slope,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss.item(), slope.item()


def test_reinforce_by_hand():
    assert float(reinforce(torch.tensor(-2.0), torch.tensor(3.0))) == 6.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: −A
        (1.5, 1.0, -1.2, 0.0),  # pushed up beyond 1 + high: held at 1.2
        (0.5, 1.0, -0.5, -0.5),  # a good token that became rarer: no clip, it may come back
        (0.5, -1.0, 0.8, 0.0),  # pushed down beyond 1 − low: held at 0.8
        (1.5, -1.0, 1.5, 1.5),  # a bad token that became likelier: no clip
        (4.0, -1.0, 4.0, 4.0),  # and however likely it became
    ],
)
def test_clip_by_hand(ratio, advantage, loss, slope):
    assert at(clip, ratio, advantage) == pytest.approx((loss, slope))


def test_clip_options_move_their_own_side():
    assert at(clip, 2.0, 1.0, low=0.1, high=0.28)[0] == pytest.approx(-1.28)
    assert at(clip, 0.1, -1.0, low=0.1, high=0.28)[0] == pytest.approx(0.9)


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.1, 2.0, 2.9, 3.1, 10.0])
@pytest.mark.parametrize("advantage", [-2.0, 1.0])
def test_dual_clip_is_clip_but_a_bad_token_costs_at_most_the_bound(ratio, advantage):
    bounded = advantage < 0 and ratio > 3
    expected = (-3.0 * advantage, 0.0) if bounded else at(clip, ratio, advantage)
    assert at(dual_clip, ratio, advantage) == pytest.approx(expected)


def test_dual_clip_options_move_their_own_side():
    options = {"low": 0.1, "high": 0.5, "bound": 2.0}
    for ratio, advantage, loss in ((2.0, 1.0, -1.5), (0.1, -1.0, 0.9), (9.0, -1.0, 2.0)):
        assert at(dual_clip, ratio, advantage, **options)[0] == pytest.approx(loss)


@pytest.mark.parametrize(("ratio", "weight"), [(0.1, 0.1), (1.0, 1.0), (4.9, 4.9), (9.0, 5.0)])
@pytest.mark.parametrize("advantage", [-2.0, 1.0])
def test_stopped_ratio_never_silences_a_token(ratio, weight, advantage):
    assert at(stopped_ratio, ratio, advantage) == pytest.approx(
        (-weight * advantage * math.log(ratio), -weight * advantage)
    )


def test_stopped_ratio_may_be_clipped_from_below_too():
    assert at(stopped_ratio, 0.5, 1.0, low=0.2)[1] == pytest.approx(-0.8)


@pytest.mark.parametrize(("advantage", "sharpness"), [(1.0, 1.0), (-1.0, 1.05)])
def test_soft_gate_has_the_slope_of_reinforce_on_policy_and_fades_away_from_it(advantage, sharpness):
    loss, slope = at(soft_gate, 1.0, advantage)
    assert (loss, slope) == pytest.approx((-2 / sharpness * advantage, -advantage))
    # σ' = σ(1 − σ) at τ(ρ − 1) = 2τ: the slope is −4·σ'·ρ·A
    gate = 1 / (1 + math.exp(-2 * sharpness))
    assert at(soft_gate, 3.0, advantage)[1] == pytest.approx(-4 * gate * (1 - gate) * 3 * advantage)


MASK = torch.tensor([[False, True, True, False, True]])
RATIOS = torch.tensor([[9.0, 2.0, 1.0, 9.0, 4.0]])  # of the trained tokens: product 8, geometric mean 2


def test_sequence_clip_has_one_ratio_for_all_tokens_of_a_row():
    loss = sequence_clip(RATIOS.log(), torch.zeros(1, 5), torch.full((1, 5), -1.0), MASK)
    assert loss[0].tolist() == pytest.approx([2.0] * 5)
    held = sequence_clip(RATIOS.log(), torch.zeros(1, 5), torch.full((1, 5), 1.0), MASK)
    assert held[0].tolist() == pytest.approx([-1.0004] * 5)
    wide = sequence_clip(RATIOS.log(), torch.zeros(1, 5), torch.full((1, 5), 1.0), MASK, high=0.5)
    assert wide[0].tolist() == pytest.approx([-1.5] * 5)


def test_geometric_clip_holds_each_log_ratio_on_the_side_that_is_pushed():
    # A > 0: log 2 and log 4 are held at 0.4, log 1 = 0 stays: mean 0.8/3
    good = geometric_clip(RATIOS.log(), torch.zeros(1, 5), torch.ones(1, 5), MASK)
    assert good[0].tolist() == pytest.approx([-math.exp(0.8 / 3)] * 5)
    bad = geometric_clip(RATIOS.log(), torch.zeros(1, 5), -torch.ones(1, 5), MASK)
    assert bad[0].tolist() == pytest.approx([2.0] * 5)
    rarer = geometric_clip(-RATIOS.log(), torch.zeros(1, 5), -torch.ones(1, 5), MASK)
    assert rarer[0].tolist() == pytest.approx([math.exp(-0.8 / 3)] * 5)


@pytest.mark.parametrize("surrogate", [sequence_clip, geometric_clip])
def test_a_row_that_trains_nothing_is_finite(surrogate):
    loss = surrogate(RATIOS.log(), torch.zeros(1, 5), torch.ones(1, 5), torch.zeros_like(MASK))
    assert bool(loss.isfinite().all())


RAGGED = torch.tensor([[False, True, True, True], [False, True, False, False], [False] * 4])


@pytest.mark.parametrize(
    ("weighting", "first", "second", "count"),
    [
        (token_mean, 1.0, 1.0, 4),
        (sequence_mean, 1 / 3, 1.0, 2),
        (sequence_sum, 1.0, 1.0, 2),
        (lambda mask: budget_mean(mask, 8), 1 / 8, 1 / 8, 2),
    ],
)
def test_weights_by_hand(weighting, first, second, count):
    """A row of three tokens, one of one, and one that trains nothing and is not counted."""
    weights, total = weighting(RAGGED)
    assert weights.is_floating_point()
    assert weights.tolist() == [
        [0.0, *[pytest.approx(first)] * 3],
        [0.0, pytest.approx(second), 0.0, 0.0],
        [0.0] * 4,
    ]
    assert int(total) == count


@pytest.mark.parametrize("weighting", [token_mean, sequence_mean])
def test_the_two_means_sum_to_one(weighting):
    weights, total = weighting(RAGGED)
    assert float(weights.sum() / total) == pytest.approx(1)
