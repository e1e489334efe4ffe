"""The DPO family: against the oracle, against numbers by hand, and by what each loss is made to be."""

from math import exp, log

import numpy as np
import pytest
import torch

from whet.algorithms.cells import bind, call, terms
from whet.algorithms.preference import losses as preference
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS

from . import oracle_preference as oracle

SETTINGS = [(name, options) for name, tried in oracle.OPTIONS.items() for options in ({}, *tried)]
PAIRED = [name for name, row in PREFERENCES.items() if row.unit == "pair"]
OF_THE_MARGIN = ["dpo", "cdpo", "robust_dpo", "ipo", "hinge"]  # they see w − l alone
STEP = 1e-6


def cell(name):
    return (PREFERENCES.get(name) or REWARDS[name]).loss


def tensors(case):
    """Everything real becomes a leaf in float64."""
    made = {key: torch.tensor(value) for key, value in case.items()}
    return {
        key: value.double().requires_grad_() if value.is_floating_point() and key not in ("point", "margins") else value
        for key, value in made.items()
    }


def pair(chosen, rejected, chosen_ref=0.0, rejected_ref=0.0, tokens=(1, 1)):
    names = ("chosen", "rejected", "chosen_ref", "rejected_ref")
    supply = dict(zip(names, (chosen, rejected, chosen_ref, rejected_ref), strict=True))
    supply = {key: torch.as_tensor(value, dtype=torch.float32).reshape(-1) for key, value in supply.items()}
    return {**supply, "chosen_tokens": torch.tensor([tokens[0]]), "rejected_tokens": torch.tensor([tokens[1]])}


def test_every_loss_has_an_oracle():
    assert oracle.LOSSES.keys() == oracle.OPTIONS.keys() == PREFERENCES.keys() | REWARDS.keys()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_a_loss_is_its_formula_and_its_gradient_the_slope_of_it(name, options, seed):
    for case in oracle.cases(name, seed):
        supply = tensors(case)
        loss = call(bind(cell(name), options), supply)
        np.testing.assert_allclose(loss.detach().numpy(), oracle.values(name, case, **options), rtol=1e-10, atol=1e-12)
        for key in terms(cell(name)):
            if supply[key].requires_grad:
                (gradient,) = torch.autograd.grad(loss.sum(), supply[key], retain_graph=True)
                np.testing.assert_allclose(gradient.numpy(), slopes(name, case, key, options), rtol=1e-5, atol=1e-7)


def slopes(name, case, key, options):
    """Central differences of the oracle's sum in every entry of a term."""
    made = np.zeros(case[key].shape)
    for place in np.ndindex(case[key].shape):
        shift = np.zeros(case[key].shape)
        shift[place] = STEP
        ahead, behind = (oracle.values(name, {**case, key: case[key] + s}, **options) for s in (shift, -shift))
        made[place] = (ahead - behind).sum() / (2 * STEP)
    return made


@pytest.mark.parametrize("name", [*PREFERENCES, *REWARDS])
def test_gradients_of_gradients_are_right_too(name):
    """gradgradcheck by torch, in float64: no step of a loss is cut off from autograd by accident."""
    for case in oracle.cases(name, 5):
        supply = tensors({key: value[:3] if value.ndim else value for key, value in case.items()})
        leaves = [key for key in terms(cell(name)) if supply[key].requires_grad]

        def loss(*values, supply=supply, leaves=leaves):
            return call(cell(name), {**supply, **dict(zip(leaves, values, strict=True))})

        inputs = tuple(supply[key] for key in leaves)
        assert torch.autograd.gradcheck(loss, inputs)
        assert torch.autograd.gradgradcheck(loss, inputs)


# By hand.


def test_dpo_of_a_policy_that_is_its_reference_is_log_two():
    supply = pair(-7.0, -3.0, -7.0, -3.0, tokens=(4, 2))
    assert call(preference.dpo, supply).item() == pytest.approx(log(2))
    assert call(preference.cdpo, supply).item() == pytest.approx(log(2))
    assert call(preference.robust_dpo, supply).item() == pytest.approx(log(2))
    assert call(preference.dpo_norm, supply).item() == pytest.approx(log(2))
    assert call(preference.hinge, supply).item() == 1.0
    assert call(preference.ipo, supply).item() == pytest.approx(25.0)  # (0 − 1/0.2)²
    assert call(preference.apo_zero, supply).item() == pytest.approx(1.0)  # 1 − ½ + ½
    assert call(preference.apo_down, supply).item() == pytest.approx(1.0)
    assert call(preference.sppo, supply).item() == pytest.approx(50.0)  # 5² + 5²


def test_the_gradient_of_dpo_is_beta_times_how_wrong_it_is():
    """∂/∂log π(chosen) = −β·σ(−β(w − l)), and the opposite for the rejected. Rafailov et al. 2023, §4."""
    chosen, rejected = torch.tensor([-2.0], requires_grad=True), torch.tensor([-9.0], requires_grad=True)
    preference.dpo(chosen, rejected, torch.tensor([-3.0]), torch.tensor([-6.0]), beta=0.5).sum().backward()
    expected = 0.5 / (1 + exp(0.5 * (1.0 + 3.0)))  # w = 1, l = −3
    assert chosen.grad.item() == pytest.approx(-expected)
    assert rejected.grad.item() == pytest.approx(expected)


def test_orpo_by_hand():
    # p_w = ½: log-odds 0. p_l = ¼: odds ⅓. Odds ratio 3, σ(log 3) = ¾. Loss log 2 + 0.1·log(4/3).
    supply = pair(4 * log(0.5), 3 * log(0.25), tokens=(4, 3))
    assert call(preference.orpo, supply).item() == pytest.approx(log(2) + 0.1 * log(4 / 3), rel=1e-6)
    assert pytest.approx(log(2) + 0.1 * log(4 / 3), abs=1e-7) == 0.6931472 + 0.0287682


def test_simpo_by_hand():
    # means −0.5 and −2: 2·1.5 − 1 = 2, log(1 + e^−2) = 0.126928. With γ = 3 nothing is left: log 2.
    supply = pair(-2.0, -6.0, tokens=(4, 3))
    assert call(preference.simpo, supply).item() == pytest.approx(0.126928, abs=1e-6)
    assert call(bind(preference.simpo, {"gamma": 3.0}), supply).item() == pytest.approx(log(2))


def test_kto_by_hand():
    # log-ratios 3 and 3, point 1, beta ½: σ(1) = 0.731059. Liked: 1 − 0.731059; disliked: 0.731059.
    ratios, labels = torch.tensor([3.0, 3.0]), torch.tensor([True, False])
    loss = preference.kto(ratios, torch.zeros(2), labels, torch.tensor(1.0), beta=0.5, desirable=2.0, undesirable=3.0)
    assert loss.tolist() == pytest.approx([2 * 0.268941, 3 * 0.731059], abs=1e-5)


def test_kto_pushes_hardest_at_the_point_and_not_far_from_it():
    """∂/∂log π = −β·λ·σ(x)·(1 − σ(x)): a quarter of β at the point, nearly nothing for a completion far above."""
    logprobs = torch.tensor([2.0, 2.0, 400.0], requires_grad=True)
    labels = torch.tensor([True, False, True])
    preference.kto(logprobs, torch.zeros(3), labels, torch.tensor(2.0), beta=0.2).sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-0.05, 0.05, 0.0], abs=1e-6)


def test_bco_and_cpo_by_hand():
    ratios, labels = torch.tensor([4.0, 4.0]), torch.tensor([True, False])
    loss = preference.bco(ratios, torch.zeros(2), labels, torch.tensor(2.0), beta=0.5)
    assert loss.tolist() == pytest.approx([log(1 + exp(-1)), log(1 + exp(1))])
    # 0.1·(−2 + 12) = 1, and ½ nat a token
    assert call(preference.cpo, pair(-2.0, -12.0, tokens=(4, 9))).item() == pytest.approx(log(1 + exp(-1)) + 0.5)


def test_ipo_wants_a_margin_and_no_more():
    at_target = pair(2.0, -3.0)  # w − l = 5 = 1/(2·0.1)
    assert call(preference.ipo, at_target).item() == 0.0
    assert call(preference.ipo, pair(3.0, -3.0)).item() == 1.0, "above the target it pulls back"
    assert call(preference.dpo, pair(3.0, -3.0)) < call(preference.dpo, at_target), "dpo never does"


def test_hinge_is_silent_beyond_its_margin():
    chosen = torch.tensor([11.0, 9.0], requires_grad=True)
    preference.hinge(chosen, torch.zeros(2), torch.zeros(2), torch.zeros(2)).sum().backward()
    assert chosen.grad.tolist() == pytest.approx([0.0, -0.1])


# By what they are made to be.


@pytest.mark.parametrize("name", PAIRED)
def test_a_better_chosen_lowers_the_loss_and_a_better_rejected_does_not(name):
    """At the start of training. `apo_down` makes both less likely, the rejected more so."""
    supply = pair([-6.0], [-6.0], [-6.0], [-6.0], tokens=(4, 4))
    leaves = {key: supply[key].requires_grad_() for key in ("chosen", "rejected")}
    call(PREFERENCES[name].loss, supply).sum().backward()
    up, down = leaves["chosen"].grad.item(), leaves["rejected"].grad.item()
    if name == "apo_down":
        assert up == pytest.approx(0.0, abs=1e-7)  # −β/4 of the first term, +β/4 of the second
    else:
        assert up < 0
    assert down > 0


def test_apo_says_which_way_the_chosen_goes():
    """`apo_zero` makes the chosen likelier; `apo_down`, once it wins, less likely."""
    for cell_, sign in ((preference.apo_zero, -1), (preference.apo_down, 1)):
        supply = pair([2.0], [-10.0])
        chosen = supply["chosen"].requires_grad_()
        call(cell_, supply).sum().backward()
        assert chosen.grad.item() * sign > 0


@pytest.mark.parametrize("name", OF_THE_MARGIN)
def test_only_the_difference_of_log_ratios_matters(name):
    supply = pair([-3.0], [-5.0], [-4.0], [-4.5])
    shifted = {**supply, "chosen": supply["chosen"] + 8, "rejected": supply["rejected"] + 8}
    loss = PREFERENCES[name].loss
    assert call(loss, shifted).item() == pytest.approx(call(loss, supply).item(), rel=1e-6)
    both = {**supply, "chosen": supply["chosen"] + 8, "chosen_ref": supply["chosen_ref"] + 8}
    assert call(loss, both).item() == pytest.approx(call(loss, supply).item(), rel=1e-6)


@pytest.mark.parametrize("name", ["apo_zero", "apo_down", "sppo"])
def test_these_also_see_where_the_chosen_stands(name):
    supply = pair([-3.0], [-5.0], [-4.0], [-4.5])
    shifted = {**supply, "chosen": supply["chosen"] + 8, "rejected": supply["rejected"] + 8}
    assert abs(call(PREFERENCES[name].loss, shifted) - call(PREFERENCES[name].loss, supply)).item() > 1e-3


@pytest.mark.parametrize("name", ["dpo", "dpo_norm"])
def test_swapping_a_pair_flips_the_logit(name):
    """L(w, l) − L(l, w) = −β(w − l), because log σ(x) − log σ(−x) = x."""
    supply = tensors(oracle.pairs(3))
    sides = {"chosen": "rejected", "rejected": "chosen"}
    swapped = {key.replace(key.split("_")[0], sides[key.split("_")[0]], 1): value for key, value in supply.items()}
    row = PREFERENCES[name]
    scores = [
        call(row.implicit, {"logprobs": supply[s], "logprobs_ref": supply[f"{s}_ref"], "tokens": supply[f"{s}_tokens"]})
        for s in ("chosen", "rejected")
    ]
    beta = {"dpo": 0.1, "dpo_norm": 2.0}[name]
    torch.testing.assert_close(call(row.loss, supply) - call(row.loss, swapped), -beta * (scores[0] - scores[1]))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.49])
def test_robust_dpo_on_flipped_labels_is_on_average_dpo_on_true_ones(rate):
    supply = tensors(oracle.pairs(4))
    keys = ("chosen", "rejected", "chosen_ref", "rejected_ref")
    chosen, rejected, chosen_ref, rejected_ref = (supply[key] for key in keys)
    true = preference.robust_dpo(chosen, rejected, chosen_ref, rejected_ref, smoothing=rate)
    flipped = preference.robust_dpo(rejected, chosen, rejected_ref, chosen_ref, smoothing=rate)
    clean = preference.dpo(chosen, rejected, chosen_ref, rejected_ref)
    torch.testing.assert_close((1 - rate) * true + rate * flipped, clean)


def test_cdpo_is_lowest_where_the_policy_is_as_sure_as_the_labels():
    """Its minimum is at σ(β(w − l)) = 1 − ε: a margin of log(0.9/0.1)/β."""
    margin = torch.tensor([log(9) / 0.1], requires_grad=True)
    zero = torch.zeros(1)
    preference.cdpo(margin, zero, zero, zero).sum().backward()
    assert margin.grad.item() == pytest.approx(0.0, abs=1e-7)
    assert preference.cdpo(margin + 1, zero, zero, zero) > preference.cdpo(margin, zero, zero, zero)


@pytest.mark.parametrize("smoothing", [0.5, 0.7, -0.1])
def test_robust_dpo_refuses_labels_that_say_nothing(smoothing):
    supply = pair(-1.0, -2.0)
    with pytest.raises(ValueError, match=r"must be below 0\.5"):
        call(bind(preference.robust_dpo, {"smoothing": smoothing}), supply)


def test_lengths_do_not_matter_where_means_are_taken():
    """The same text twice as long, at the same log-prob per token."""
    short, long = pair(-4.0, -6.0, -5.0, -5.0, tokens=(4, 3)), pair(-8.0, -12.0, -10.0, -10.0, tokens=(8, 6))
    for cell_ in (preference.dpo_norm, preference.simpo, preference.orpo, bind(preference.ipo, {"per_token": True})):
        torch.testing.assert_close(call(cell_, short), call(cell_, long))
    for cell_ in (preference.dpo, preference.ipo, preference.cpo):
        assert not torch.allclose(call(cell_, short), call(cell_, long))


def test_the_bound_of_bco_on_dpo():
    """−log σ(a) − log σ(−b) ≥ −log σ(a − b): why learning labels learns pairs. Jung et al. 2024, theorem 1."""
    case = oracle.pairs(6)
    w, low = (torch.tensor(case[side] - case[f"{side}_ref"]) for side in ("chosen", "rejected"))
    zero, yes = torch.zeros_like(w), torch.ones_like(w, dtype=torch.bool)
    for point in (torch.tensor(0.0), torch.tensor(1.5), preference.midpoint(torch.stack([low.mean(), w.mean()]))):
        both = preference.bco(w, zero, yes, point) + preference.bco(low, zero, ~yes, point)
        assert (both >= preference.dpo(w, low, zero, zero)).all()


# Extreme inputs.


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize(("chosen", "rejected"), [(-1e4, -1.0), (-1.0, -1e4), (-1e4, -1e4), (0.0, 0.0), (0.0, -1e4)])
def test_extreme_log_probs_have_finite_losses_and_gradients(name, chosen, rejected):
    supply = pair(chosen, rejected, -1.0, -1.0)
    leaves = [supply[key].requires_grad_() for key in ("chosen", "rejected")]
    loss = call(PREFERENCES[name].loss, supply)
    gradients = torch.autograd.grad(loss.sum(), leaves)
    assert loss.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ["kto", "bco"])
def test_extreme_log_ratios_of_labelled_completions_are_finite(name):
    logprobs = torch.tensor([-1e4, -1e4, 1e4, 1e4], requires_grad=True)
    labels = torch.tensor([True, False, True, False])
    loss = call(
        PREFERENCES[name].loss,
        {"logprobs": logprobs, "logprobs_ref": torch.zeros(4), "labels": labels, "point": torch.tensor(3.0)},
    )
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logprobs.grad.isfinite().all()
    assert loss.tolist() == pytest.approx({"kto": [1, 0, 0, 1], "bco": [1000.3, 0, 0, 999.7]}[name])


def test_dpo_far_from_its_pair_is_a_straight_line():
    """−log σ(−1000) is 1000, not the infinity that log(σ(x)) gives; its gradient stays β."""
    chosen = torch.tensor([-1e4], requires_grad=True)
    loss = preference.dpo(chosen, torch.zeros(1), torch.zeros(1), torch.zeros(1))
    loss.sum().backward()
    assert loss.item() == pytest.approx(1000.0)
    assert chosen.grad.item() == pytest.approx(-0.1)


@pytest.mark.parametrize("mean", [-1e-6, -1e-3, -0.3, -log(2), -0.7, -5.0, -40.0, -200.0])
def test_log_odds_keep_their_digits_in_fp32(mean):
    """Against float64, which has digits to spare: log p − log(1 − p) with 1 − p = −expm1(log p)."""
    wide = np.float64(np.float32(mean))
    expected = wide - np.log(-np.expm1(wide))
    assert preference.log_odds(torch.tensor([mean]), torch.tensor([1])).item() == pytest.approx(
        expected, rel=1e-6, abs=1e-7
    )


def test_the_slope_of_log_odds_is_one_over_what_is_left():
    mean = torch.tensor([-0.01, -0.5, -3.0, -90.0], dtype=torch.float64, requires_grad=True)
    preference.log_odds(mean, torch.ones(4)).sum().backward()
    torch.testing.assert_close(mean.grad, 1 / (1 - mean.detach().exp()))


def test_a_completion_without_tokens_divides_by_nothing():
    """A reply that is empty after truncation has a sum of 0; its mean is 0, not NaN."""
    supply = pair(0.0, -4.0, 0.0, -4.0, tokens=(0, 2))
    for name in ("dpo_norm", "simpo", "orpo", "cpo"):
        assert call(PREFERENCES[name].loss, supply).isfinite().all()


# Reference points.


def test_the_point_of_kto_is_a_kl_that_is_never_below_zero():
    ratios = torch.tensor([1.0, -2.0, 4.0])
    assert preference.mismatched_kl(ratios, torch.zeros(3)).item() == 1.0
    assert preference.mismatched_kl(-ratios, torch.zeros(3)).item() == 0.0


@pytest.mark.parametrize("cell_", [preference.kto, preference.bco])
def test_no_gradient_passes_through_a_point(cell_):
    logprobs = torch.tensor([-1.0, -2.0, -6.0], requires_grad=True)
    labels = torch.tensor([True, False, True])
    slopes_ = [
        torch.autograd.grad(cell_(logprobs, torch.zeros(3), labels, point).sum(), logprobs)[0]
        for point in (logprobs.mean(), torch.tensor(-3.0))
    ]
    assert torch.equal(*slopes_)


def test_the_point_of_bco_is_halfway_between_two_moving_means():
    means = torch.zeros(2)
    ratios, labels = torch.tensor([2.0, 4.0, -10.0]), torch.tensor([True, True, False])
    means = preference.moving_means(means, ratios, labels)
    assert means.tolist() == pytest.approx([-1.0, 0.3])
    assert preference.midpoint(means).item() == pytest.approx(-0.35), "not the mean over completions, −4/30"
    only_good = preference.moving_means(means, torch.tensor([1.3]), torch.tensor([True]), share=0.5)
    assert only_good.tolist() == pytest.approx([-1.0, 0.8])


def test_what_a_point_is_made_of_gets_no_gradient():
    ratios, labels = torch.tensor([2.0, -1.0], requires_grad=True), torch.tensor([True, False])
    assert not preference.mismatched_kl(ratios, torch.zeros(2)).requires_grad
    assert not preference.midpoint(ratios).requires_grad
    assert not preference.moving_means(torch.zeros(2), ratios, labels).requires_grad


def test_a_log_ratio_that_is_not_a_number_stays_visible_in_the_means():
    means = preference.moving_means(torch.zeros(2), torch.tensor([torch.nan]), torch.tensor([True]))
    assert means[1].isnan()
