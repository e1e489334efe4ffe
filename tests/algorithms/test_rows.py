"""Every row and every cell of the table against the oracle: the loss of a step, and its gradient by differences."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from whet.algorithms.cells import bind, is_per_sequence, is_per_token
from whet.algorithms.table import (
    ADVANTAGES,
    ALGORITHMS,
    CELLS,
    CORRECTIONS,
    KL_ESTIMATORS,
    SCALINGS,
    SURROGATES,
    WEIGHTINGS,
)

from . import composed, oracle
from .batches import GROUP, Case, never_negative, random_case
from .oracle import ROWS, places, trained

pytestmark = pytest.mark.usefixtures("double")
SEEDS = range(4)
STEP = 1e-5


def case_of(row, seed) -> Case:
    case = random_case(seed)
    return never_negative(case) if row.advantage == "max_likelihood" else case


def assert_agree(algorithm, row, case, **terms):
    """Same value, and autograd equals central differences of the oracle."""
    loss, logprobs = composed.step_loss(algorithm, case, **terms)
    step = oracle.prepare(row, case, **terms)
    assert loss.item() == pytest.approx(oracle.step_loss(step, case.new), rel=1e-10, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    numeric = np.zeros(case.mask.shape)
    for b, t in trained(case.mask):
        shift = np.zeros(case.mask.shape)
        shift[b, t] = STEP
        ahead, behind = (oracle.row_loss(step, case.new + s, b) for s in (shift, -shift))
        numeric[b, t] = (ahead - behind) / (2 * STEP)
    np.testing.assert_allclose(gradient.numpy(), numeric, rtol=1e-6, atol=1e-10)


def test_every_row_and_every_cell_has_an_oracle():
    assert ROWS.keys() == ALGORITHMS.keys()
    assert oracle.ADVANTAGES.keys() | oracle.TOKEN_ADVANTAGES.keys() == ADVANTAGES.keys()
    assert oracle.SURROGATES.keys() == SURROGATES.keys()
    assert oracle.SCALINGS.keys() == SCALINGS.keys()
    assert oracle.WEIGHTINGS.keys() == WEIGHTINGS.keys()
    assert oracle.CORRECTIONS.keys() == CORRECTIONS.keys()
    assert oracle.KL.keys() == KL_ESTIMATORS.keys()
    assert set(CELLS) == {"advantage", "scaling", "surrogate", "weighting", "importance_correction", "dynamic_sampling"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_row_is_its_formula(name, seed):
    assert_agree(ALGORITHMS[name], ROWS[name], case_of(ROWS[name], seed))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_row_with_a_kl_and_an_entropy_bonus_is_its_formula(name):
    assert_agree(ALGORITHMS[name], ROWS[name], case_of(ROWS[name], 7), kl_coefficient=0.05, entropy=0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", ADVANTAGES)
def test_every_advantage_under_a_clip(cell, seed):
    row = replace(ROWS["grpo"], advantage=cell)
    assert_agree(replace(ALGORITHMS["grpo"], advantage=ADVANTAGES[cell]), row, case_of(row, 10 + seed))


@pytest.mark.parametrize(("cell", "advantage"), [*product(SCALINGS, ["gae", "center"])])
def test_every_scaling_of_advantages_per_token_and_per_rollout(cell, advantage):
    algorithm = replace(ALGORITHMS["grpo"], advantage=ADVANTAGES[advantage], scaling=SCALINGS[cell])
    assert_agree(algorithm, replace(ROWS["grpo"], advantage=advantage, scaling=cell), random_case(20))


@pytest.mark.parametrize(("surrogate", "weighting"), [*product(SURROGATES, WEIGHTINGS)])
def test_every_surrogate_under_every_weighting(surrogate, weighting):
    algorithm = replace(ALGORITHMS["grpo"], surrogate=SURROGATES[surrogate], weighting=WEIGHTINGS[weighting])
    assert_agree(algorithm, replace(ROWS["grpo"], surrogate=surrogate, weighting=weighting), random_case(30))


@pytest.mark.parametrize(("correction", "surrogate"), [*product(CORRECTIONS, ["reinforce", "clip", "sequence_clip"])])
def test_every_correction_weighs_the_surrogate_and_leaves_kl_and_entropy_alone(correction, surrogate):
    cells = {"importance_correction": CORRECTIONS[correction], "surrogate": SURROGATES[surrogate]}
    row = replace(ROWS["grpo"], importance_correction=correction, surrogate=surrogate)
    assert_agree(replace(ALGORITHMS["grpo"], **cells), row, random_case(40), kl_coefficient=0.1, entropy=0.1)


@pytest.mark.parametrize("advantage", ["leave_one_out", "gae"])
@pytest.mark.parametrize(("estimator", "place"), [*product(KL_ESTIMATORS, ["loss", "reward"])])
def test_every_kl_estimator_in_both_places(estimator, place, advantage):
    cells = {"kl": KL_ESTIMATORS[estimator], "kl_place": place, "advantage": ADVANTAGES[advantage]}
    row = replace(ROWS["ppo"], kl=estimator, place=place, advantage=advantage)
    assert_agree(replace(ALGORITHMS["ppo"], **cells), row, random_case(50), kl_coefficient=0.3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_entropy_bonus_is_a_mean_over_trained_tokens_whatever_the_row(name):
    case = case_of(ROWS[name], 60)
    plain, with_bonus = (composed.step_loss(ALGORITHMS[name], case, entropy=c)[0].item() for c in (0.0, 0.5))
    step = oracle.prepare(ROWS[name], case)
    entropies = [case.entropies[b, t] for b, t in trained(step.case.mask)]
    assert plain - with_bonus == pytest.approx(0.5 * np.mean(entropies))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_off_the_mask_changes_nothing(name):
    case = case_of(ROWS[name], 70)
    rng = np.random.default_rng(0)
    arrays = ("new", "old", "ref", "sampled", "values", "entropies")
    noise = {key: np.where(case.mask, getattr(case, key), rng.normal(-3, 2, case.mask.shape)) for key in arrays}
    terms = {"kl_coefficient": 0.1, "entropy": 0.1}
    (loss, at), (other, other_at) = (
        composed.step_loss(ALGORITHMS[name], c, **terms) for c in (case, replace(case, **noise))
    )
    assert loss.item() == pytest.approx(other.item(), rel=1e-12)
    (gradient,), (other_gradient,) = torch.autograd.grad(loss, at), torch.autograd.grad(other, other_at)
    assert torch.allclose(gradient, other_gradient)
    assert not other_gradient[~torch.tensor(case.mask)].any()


def test_the_batches_reach_every_branch():
    """Else the comparisons above would prove less than they say."""
    seen = set()
    for seed in SEEDS:
        case = random_case(seed)
        advantages = oracle.step_advantages(ROWS["grpo"], case, 0.0)
        for b, t in trained(case.mask):
            ratio, sign = np.exp(case.new[b, t] - case.old[b, t]), np.sign(advantages[b, t])
            seen.add(("token", sign, "below" if ratio < 0.8 else "above" if ratio > 1.28 else "inside"))
            seen.add(("bound", sign, bool(ratio > 3)))
            seen.add(("cap", bool(ratio > 5)))
            mean = np.mean([case.new[b, s] - case.old[b, s] for s in places(case.mask, b)])
            seen.add(("sequence", sign, "below" if mean < -3e-4 else "above" if mean > 4e-4 else "inside"))
        lengths = [len(places(case.mask, b)) for b in range(len(case.mask))]
        assert {0, 1} < set(lengths), "a row that trains nothing and one of one token"
        assert {len(set(r)) for r in case.rewards.tolist()} >= {1, 2, GROUP}
    expected = {(kind, s, where) for kind in ("token", "sequence") for s in (-1, 1) for where in WHERE}
    assert expected | {("bound", -1, True), ("bound", 1, True), ("cap", True)} <= seen


WHERE = ("below", "inside", "above")


def test_what_is_per_sequence_or_per_token_is_declared():
    for named, of_sequence in {
        "sequence_clip": True,
        "geometric_clip": True,
        "clip": False,
        "reinforce": False,
    }.items():
        assert is_per_sequence(SURROGATES[named]) == is_per_sequence(bind(SURROGATES[named], {})) == of_sequence
    assert is_per_sequence(bind(SURROGATES["sequence_clip"], {"low": 0.1}))
    for named, of_token in {"gae": True, "to_go": True, "center": False, "best_over_worst": False}.items():
        assert is_per_token(ADVANTAGES[named]) == of_token
