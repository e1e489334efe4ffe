"""Losses of reward models by hand and by their properties; `test_preference.py` compares them with the oracle."""

from math import exp, log

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from whet.algorithms.preference.reward_losses import (
    bradley_terry,
    outcome,
    process,
)


def one(*values):
    return tuple(torch.tensor([float(value)]) for value in values)


def test_equal_scores_cost_log_two_whatever_they_are():
    for score in (-50.0, 0.0, 3.0):
        assert bradley_terry(*one(score, score, 9.0)).item() == pytest.approx(log(2))


def test_only_the_difference_of_scores_matters_until_they_are_centred():
    here, there = one(1.0, -0.5, 0.0), one(101.0, 99.5, 0.0)
    assert bradley_terry(*here).item() == pytest.approx(bradley_terry(*there).item())
    penalty = bradley_terry(*here, centring=0.01) - bradley_terry(*here)
    assert penalty.item() == pytest.approx(0.01 * 0.5**2)
    assert bradley_terry(*there, centring=0.01).item() > 400


def test_margins_are_read_where_they_are_wanted():
    # 2 − 0 − 3 = −1
    assert bradley_terry(*one(2.0, 0.0, 3.0), use_margins=True).item() == pytest.approx(log(1 + exp(1)))
    assert bradley_terry(*one(2.0, 0.0, 3.0)).item() == pytest.approx(log(1 + exp(-2)))
    nothing = torch.tensor([torch.nan])  # where data has no margins
    assert bradley_terry(*one(2.0, 0.0), nothing).item() == pytest.approx(log(1 + exp(-2)))


def test_smoothing_is_the_mean_over_flipped_labels_with_their_margin():
    chosen, rejected, margins = one(1.0, 0.4, 0.5)
    kept = bradley_terry(chosen, rejected, margins, use_margins=True)
    flipped = bradley_terry(rejected, chosen, margins, use_margins=True)
    smooth = bradley_terry(chosen, rejected, margins, smoothing=0.2, use_margins=True)
    torch.testing.assert_close(smooth, 0.8 * kept + 0.2 * flipped)


def test_the_gradient_is_the_probability_of_the_wrong_order():
    chosen, rejected, margins = one(1.0, 0.4, 0.0)
    chosen.requires_grad_()
    bradley_terry(chosen, rejected, margins).sum().backward()
    assert chosen.grad.item() == pytest.approx(-1 / (1 + exp(0.6)))


@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_extreme_scores_stay_finite(gap):
    chosen, rejected, margins = one(gap, 0.0, 0.0)
    chosen.requires_grad_()
    loss = bradley_terry(chosen, rejected, margins, smoothing=0.1)
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.9e4 if gap < 0 else 0.1e4)
    assert chosen.grad.item() == pytest.approx(-0.9 if gap < 0 else 0.1)
    for label in (True, False):
        assert outcome(torch.tensor([gap]), torch.tensor([label])).item() == (1e4 if (gap < 0) == label else 0.0)


def test_outcome_is_a_cross_entropy_per_token_of_any_shape():
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([True, False, True])[:, None].expand(3, 5)
    expected = binary_cross_entropy_with_logits(scores, labels.float(), reduction="none")
    torch.testing.assert_close(outcome(scores, labels), expected)
    assert outcome(torch.zeros(1), torch.tensor([True])).item() == pytest.approx(log(2))


def test_process_with_two_classes_is_outcome_on_their_difference():
    scores, labels = torch.randn(6, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 1, 0, 1, 0])
    torch.testing.assert_close(process(scores, labels), outcome(scores[:, 1] - scores[:, 0], labels.bool()))


def test_process_with_three_classes_by_hand():
    scores = torch.tensor([[0.0, log(2), log(3)]]).expand(3, 3)  # probabilities 1/6, 2/6, 3/6
    assert process(scores, torch.tensor([0, 1, 2])).tolist() == pytest.approx([log(6), log(3), log(2)])
