"""Weights for another sampler's tokens, by hand; what they do to the gradient is in test_enumeration_correction.py."""

import math
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.algorithms.cells import call
from whet.algorithms.policy_loss import (
    effective_share,
    geometric_mask,
    geometric_truncate,
    geometric_weights,
    sequence_mask,
    sequence_truncate,
    sequence_weights,
    token_mask,
    token_truncate,
    token_weights,
    uncorrected,
)
from whet.algorithms.table import CORRECTIONS

# Ratios on the mask: 4 and 1 (product 4, geometric mean 2); 0.25 alone; a row that trains nothing.
MASK = torch.tensor([[False, True, False, True], [False, True, False, False], [False] * 4])
OLD = torch.tensor([[9.0, 0.8, 9.0, 0.3], [9.0, 0.1, 9.0, 9.0], [9.0] * 4], dtype=torch.float64).log()
SAMPLED = torch.tensor([[1.0, 0.2, 1.0, 0.3], [1.0, 0.4, 1.0, 1.0], [1.0] * 4], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("cell", "options", "first", "second", "third"),
    [
        (uncorrected, {}, 1.0, 1.0, 1.0),
        (token_weights, {}, 4.0, 1.0, 0.25),
        (sequence_weights, {}, 4.0, 4.0, 0.25),
        (geometric_weights, {}, 2.0, 2.0, 0.25),
        (token_truncate, {}, 2.0, 1.0, 0.25),
        (sequence_truncate, {"high": 3.0}, 3.0, 3.0, 0.25),
        (geometric_truncate, {"high": 1.5}, 1.5, 1.5, 0.25),
        (token_mask, {}, 4.0, 1.0, 0.0),
        (token_mask, {"low": 0.1, "high": 2.0}, 0.0, 1.0, 0.25),
        (sequence_mask, {}, 0.0, 0.0, 0.25),
        (sequence_mask, {"low": 0.5, "high": 4.5}, 4.0, 4.0, 0.0),
        (geometric_mask, {}, 0.0, 0.0, 0.0),
        (geometric_mask, {"low": 0.2, "high": 2.5}, 2.0, 2.0, 0.25),
    ],
)
def test_weights_by_hand(cell, options, first, second, third):
    found = cell(MASK) if cell is uncorrected else cell(OLD, SAMPLED, MASK, **options)
    wanted = [[0.0, first, 0.0, second], [0.0, third, 0.0, 0.0], [0.0] * 4]
    assert found.is_floating_point()
    assert torch.allclose(found.double(), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("cell", CORRECTIONS)
def test_a_sampler_that_is_the_policy_gets_weight_one(cell):
    supply = {"logprobs_old": OLD, "logprobs_sampled": OLD, "mask": MASK}
    assert torch.equal(call(CORRECTIONS[cell], supply).double(), MASK.double())


@pytest.mark.parametrize("cell", [token_mask, sequence_mask, geometric_mask])
def test_both_ends_of_the_band_are_inside(cell):
    assert torch.equal(cell(OLD, OLD, MASK, low=1.0, high=2.0), MASK.double())
    assert torch.equal(cell(OLD, OLD, MASK, low=0.5, high=1.0), MASK.double())


@pytest.mark.parametrize("cell", CORRECTIONS)
@pytest.mark.parametrize("drift", [1.0, -1.0])
def test_a_long_row_that_drifted_far_stays_finite(cell, drift):
    """exp(200) is more than fp32 holds: the row is capped or dropped, and its untrained tokens still weigh 0."""
    mask = torch.tensor([[False] + [True] * 200 + [False]])
    supply = {"logprobs_old": torch.full(mask.shape, drift - 2), "logprobs_sampled": torch.full(mask.shape, -2.0)}
    found = call(CORRECTIONS[cell], {**supply, "mask": mask})
    assert bool(found.isfinite().all())
    assert not found[~mask].any()


def test_effective_share_by_hand():
    assert effective_share(torch.ones(7)) == 1.0
    assert effective_share(torch.tensor([3.0, 3.0])) == 1.0
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert effective_share(torch.tensor([3.0, 1.0])) == pytest.approx(16 / 20)


def test_effective_share_of_nothing_of_zeros_and_of_infinite_weights():
    assert effective_share(torch.tensor([])) == 1.0
    assert effective_share(torch.zeros(3)) == 0.0
    assert effective_share(torch.tensor([inf, 1.0, 1.0, 1.0])) == 0.25
    assert effective_share(torch.tensor([1e300, 1e300], dtype=torch.float64)) == 1.0


def test_effective_share_of_weights_in_fp32_is_computed_in_fp64():
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    exact = [float(weight) for weight in weights]
    wanted = math.fsum(exact) ** 2 / (1000 * math.fsum(weight * weight for weight in exact))
    assert effective_share(weights) == pytest.approx(wanted, rel=1e-13)


@given(st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_effective_share_lies_between_one_of_n_and_one_and_knows_no_scale(weights, scale):
    tensor = torch.tensor(weights, dtype=torch.float64)
    share = effective_share(tensor)
    assert share == 0.0 if not any(weights) else 1 / len(weights) - 1e-9 <= share <= 1 + 1e-9
    assert effective_share(tensor * scale) == pytest.approx(share)
