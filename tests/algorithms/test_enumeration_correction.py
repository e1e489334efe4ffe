"""Completions of another sampler: which weights give back the true gradient, and which way the others err."""

from dataclasses import replace
from math import inf

import pytest
import torch

from whet.algorithms.cells import bind
from whet.algorithms.policy_loss import (
    clip,
    geometric_mask,
    geometric_truncate,
    geometric_weights,
    sequence_mask,
    sequence_truncate,
    sequence_weights,
    token_mask,
    token_truncate,
    token_weights,
)
from whet.algorithms.table import ALGORITHMS

from .tabular import (
    chances,
    close,
    cosine,
    expected_gradient,
    graded,
    gradient,
    logprobs,
    policy,
    true_gradient,
    world,
)

pytestmark = pytest.mark.usefixtures("double")
SPACE = world(2)
POLICY, SAMPLER, REWARDS = policy(SPACE, 1), policy(SPACE, 2).detach(), graded(SPACE, 1)
RATIOS = (chances(SPACE, POLICY) / chances(SPACE, SAMPLER)).detach()[0]
LARGEST = float(RATIOS.max())


def corrected(cell, space=SPACE, logits=POLICY, sampler=SAMPLER, rewards=REWARDS, row="reinforce", group=1):
    algorithm = replace(ALGORITHMS[row], importance_correction=cell)
    return expected_gradient(algorithm, space, logits, rewards, sampler=sampler, group=group)


def weighted_gradient(shares):
    """Σ over completions of share · reward · ∇log π."""
    return gradient((shares.detach() * REWARDS[0] * logprobs(SPACE, POLICY)[0].sum(dim=1)).sum(), POLICY)


TRUE = true_gradient(SPACE, POLICY, REWARDS)


def test_without_correction_the_gradient_is_the_sampler_s():
    found = expected_gradient(ALGORITHMS["reinforce"], SPACE, POLICY, REWARDS, sampler=SAMPLER)
    assert close(found, weighted_gradient(chances(SPACE, SAMPLER)[0]))
    assert cosine(found, TRUE) < 0.9


@pytest.mark.parametrize("high", [inf, LARGEST * 1.001])
@pytest.mark.parametrize("surrogate", [ALGORITHMS["reinforce"].surrogate, clip])
def test_sequence_weights_are_unbiased_while_the_cap_is_above_every_ratio(surrogate, high):
    row = replace(
        ALGORITHMS["reinforce"], surrogate=surrogate, importance_correction=bind(sequence_truncate, {"high": high})
    )
    assert close(expected_gradient(row, SPACE, POLICY, REWARDS, sampler=SAMPLER), TRUE)


def test_sequence_weights_keep_rloo_unbiased_though_its_baseline_is_the_sampler_s():
    """The rewards of the others are no part of rollout i, whoever sampled them: as a baseline they cost nothing."""
    found = corrected(bind(sequence_truncate, {"high": inf}), row="rloo", group=2)
    assert close(found, TRUE)


def test_token_weights_are_unbiased_for_one_token_and_not_for_two():
    one = world(1)
    logits, sampler, rewards = policy(one, 3), policy(one, 4).detach(), graded(one, 3)
    cell = bind(token_truncate, {"high": inf})
    assert close(corrected(cell, one, logits, sampler, rewards), true_gradient(one, logits, rewards))
    assert (corrected(cell) - TRUE).norm() > 0.1 * TRUE.norm()


def test_geometric_weights_are_unbiased_for_one_token_and_not_for_two():
    one = world(1)
    logits, sampler, rewards = policy(one, 3), policy(one, 4).detach(), graded(one, 3)
    cell = bind(geometric_truncate, {"high": inf})
    assert close(corrected(cell, one, logits, sampler, rewards), true_gradient(one, logits, rewards))
    assert (corrected(cell) - TRUE).norm() > 0.1 * TRUE.norm()


@pytest.mark.parametrize("high", [0.5, 1.0, 2.0])
def test_a_cap_below_a_ratio_keeps_the_share_that_the_sampler_can_carry(high):
    """A completion counts with min(π, high·sampler): what the policy likes far more than the sampler, too little."""
    shares = torch.minimum(chances(SPACE, POLICY)[0], high * chances(SPACE, SAMPLER)[0]).detach()
    assert close(corrected(bind(sequence_truncate, {"high": high})), weighted_gradient(shares))
    short = chances(SPACE, POLICY)[0].detach() - shares
    assert torch.equal(short > 1e-12, high < RATIOS)
    assert short.sum() > 0.01


def test_a_lower_cap_is_a_larger_bias():
    bias = [float((corrected(bind(sequence_truncate, {"high": h})) - TRUE).norm()) for h in (0.5, 1.0, 2.0, inf)]
    assert bias[0] > bias[1] > bias[2] > bias[3]
    assert bias[3] < 1e-12


def test_mask_sequences_drops_the_completions_outside_the_band_and_weighs_the_rest_exactly():
    low, high = 0.5, 2.0
    inside = (low <= RATIOS) & (high >= RATIOS)
    assert 0 < int(inside.sum()) < len(RATIOS)
    shares = chances(SPACE, POLICY)[0] * inside
    assert close(corrected(bind(sequence_mask, {"low": low, "high": high})), weighted_gradient(shares))


def test_mask_geometric_drops_by_the_ratio_per_token():
    low, high = 0.7, 1.4
    per_token = RATIOS ** (1 / SPACE.mask.sum(dim=1))
    inside = (per_token >= low) & (per_token <= high)
    assert 0 < int(inside.sum()) < len(RATIOS)
    shares = chances(SPACE, SAMPLER)[0] * per_token * inside
    assert close(corrected(bind(geometric_mask, {"low": low, "high": high})), weighted_gradient(shares))


def test_mask_tokens_drops_single_tokens():
    weights = token_mask(logprobs(SPACE, POLICY)[0].detach(), logprobs(SPACE, SAMPLER)[0], SPACE.mask)
    p, q = logprobs(SPACE, POLICY)[0].detach().exp(), logprobs(SPACE, SAMPLER)[0].exp()
    for b in range(len(weights)):
        for t in range(SPACE.max_tokens):
            ratio = float(p[b, t] / q[b, t])
            kept = bool(SPACE.mask[b, t]) and 0.5 <= ratio <= 5.0
            assert float(weights[b, t]) == pytest.approx(ratio if kept else 0.0)
    assert int((weights == 0).sum()) > int((~SPACE.mask).sum())


@pytest.mark.parametrize("weights", [token_weights, sequence_weights])
def test_untruncated_weights_average_to_one_over_the_sampler(weights):
    found = weights(logprobs(SPACE, POLICY)[0].detach(), logprobs(SPACE, SAMPLER)[0], SPACE.mask)
    assert float((chances(SPACE, SAMPLER)[0] * found[:, 0]).sum()) == pytest.approx(1, abs=1e-12)


def test_geometric_weights_do_not_average_to_one():
    found = geometric_weights(logprobs(SPACE, POLICY)[0].detach(), logprobs(SPACE, SAMPLER)[0], SPACE.mask)
    assert abs(float((chances(SPACE, SAMPLER)[0] * found[:, 0]).sum()) - 1) > 0.01
