"""Our losses of preferences and reward models equal TRL's, in value and gradient, under the settings of each case."""

import pytest

pytest.importorskip("trl", reason="trl is not installed: `make test-parity` has a venv with it")

import torch

from tests.parity.tensors import random_tensors
from tests.parity.theirs_preference import dpo_loss, kto_loss, preference_trainer, reward_loss
from whet.algorithms.cells import bind, call, options
from whet.algorithms.preference import losses as preference
from whet.algorithms.preference import reward_losses
from whet.algorithms.preference.preference_table import PREFERENCES

pytestmark = pytest.mark.parity

PAIRED = {  # case → our loss, and the settings of TRL under which it computes the same
    "dpo": (preference.dpo, {}),
    "dpo, beta": (bind(preference.dpo, {"beta": 0.5}), {"beta": 0.5}),
    "dpo_norm": (preference.dpo_norm, {"loss_type": "sigmoid_norm", "beta": 2.0}),
    "ipo per token": (bind(preference.ipo, {"per_token": True}), {"loss_type": "ipo"}),
    "hinge": (preference.hinge, {"loss_type": "hinge"}),
    "robust_dpo": (preference.robust_dpo, {"loss_type": "robust", "label_smoothing": 0.1}),
    "apo_zero": (preference.apo_zero, {"loss_type": "apo_zero"}),
    "apo_down": (preference.apo_down, {"loss_type": "apo_down"}),
    "sppo": (preference.sppo, {"loss_type": "sppo_hard"}),
}
SEEDS = range(3)


def supplied(logprobs, logprobs_ref, mask):
    """(2P, T) log-probs of completions → what the loop supplies to a pair loss."""
    made = {}
    for name, values in (("", logprobs), ("_ref", logprobs_ref), ("_tokens", torch.ones_like(logprobs))):
        made[f"chosen{name}"], made[f"rejected{name}"] = (values * mask).sum(1).chunk(2)
    return made


def assert_equal(theirs, ours, *leaves):
    """The loss and its gradient in every leaf."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for leaf in leaves:
        (expected,) = torch.autograd.grad(theirs, leaf, retain_graph=True)
        (gradient,) = torch.autograd.grad(ours, leaf, retain_graph=True)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
        assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("case", PAIRED)
def test_pairs(checkpoint, case):
    loss, settings = PAIRED[case]
    trainer = preference_trainer(checkpoint, "dpo", **settings)
    assert trainer.beta == options(loss)["beta"], "TRL's default is ours where no beta is set"
    for seed in SEEDS:
        tensors = random_tensors(drift=1.0, seed=seed)
        leaf = tensors.logprobs.clone().requires_grad_()
        ours = call(loss, supplied(leaf, tensors.logprobs_ref, tensors.mask)).mean()
        assert_equal(dpo_loss(trainer, leaf, tensors.logprobs_ref, tensors.mask), ours, leaf)


def test_the_hinge_is_reached_on_both_sides(checkpoint):
    """Otherwise `test_pairs` would compare straight lines."""
    trainer = preference_trainer(checkpoint, "dpo", loss_type="hinge", beta=2.0)
    losses = []
    for seed in range(4):
        tensors = random_tensors(drift=1.0, seed=seed)
        leaf = tensors.logprobs.clone().requires_grad_()
        supply = supplied(leaf, tensors.logprobs_ref, tensors.mask)
        losses.append(call(bind(preference.hinge, {"beta": 2.0}), supply))
        assert_equal(dpo_loss(trainer, leaf, tensors.logprobs_ref, tensors.mask), losses[-1].mean(), leaf)
    assert 0 < (torch.cat(losses) == 0).sum() < 16


def test_ipo_of_the_paper_is_another_loss_than_trls(checkpoint):
    """TRL takes means over tokens where the paper has the log-prob of the whole completion."""
    tensors = random_tensors(drift=1.0)
    ours = call(preference.ipo, supplied(tensors.logprobs, tensors.logprobs_ref, tensors.mask)).mean()
    theirs = dpo_loss(
        preference_trainer(checkpoint, "dpo", loss_type="ipo"), tensors.logprobs, tensors.logprobs_ref, tensors.mask
    )
    assert abs(ours - theirs) > 0.1


def test_label_smoothing_does_not_make_trls_dpo_our_cdpo(checkpoint):
    """TRL 1.16 reads it in `robust`, `exo_pair` and `aot` only; a sigmoid loss is the same with and without."""
    tensors = random_tensors(drift=1.0)
    given = (tensors.logprobs, tensors.logprobs_ref, tensors.mask)
    plain, smooth = (
        dpo_loss(preference_trainer(checkpoint, "dpo", label_smoothing=share), *given) for share in (0.0, 0.1)
    )
    assert torch.equal(plain, smooth)
    assert abs(call(preference.cdpo, supplied(*given)).mean() - smooth) > 1e-3


KTO = {
    "defaults": ({}, {}),
    "weights": (
        {"beta": 0.4, "desirable": 1.3, "undesirable": 0.6},
        {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6},
    ),
}


@pytest.mark.parametrize("case", KTO)
def test_kto_with_its_point_from_mismatched_completions(checkpoint, case):
    chosen, settings = KTO[case]
    trainer = preference_trainer(checkpoint, "kto", **settings)
    points = []
    for seed in range(6):
        tensors, other = random_tensors(drift=1.0, seed=seed), random_tensors(drift=1.0, seed=100 + seed)
        leaf, mask = tensors.logprobs.clone().requires_grad_(), tensors.mask
        labels = torch.arange(len(mask)) % 3 == 0
        theirs = kto_loss(trainer, leaf, tensors.logprobs_ref, mask, labels, (other.logprobs, other.logprobs_ref))
        points.append(preference.mismatched_kl((other.logprobs * mask).sum(1), (other.logprobs_ref * mask).sum(1)))
        sums = ((values * mask).sum(1) for values in (leaf, tensors.logprobs_ref))
        ours = preference.kto(*sums, labels, points[-1], **chosen).mean()
        assert_equal(theirs, ours, leaf)
    assert 0 < sum(bool(point > 0) for point in points) < len(points), "points on both sides of the clamp"


def test_simpo_and_cpo(checkpoint):
    """TRL's SimPO adds a likelihood term unless `cpo_alpha` is 0; its γ is ours, 0.5 by default."""
    supply = supplied(random_tensors().logprobs, random_tensors().logprobs_ref, random_tensors().mask)
    chosen, rejected = supply["chosen"].requires_grad_(), supply["rejected"].requires_grad_()
    contrast = preference_trainer(checkpoint, "cpo").cpo_loss(chosen, rejected)[0].sum()
    assert_equal(contrast, call(bind(preference.cpo, {"nll": 0.0}), supply).sum(), chosen, rejected)
    simpo = preference_trainer(checkpoint, "cpo", loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=1.0)
    means = (supply[side] / supply[f"{side}_tokens"] for side in ("chosen", "rejected"))
    assert_equal(simpo.cpo_loss(*means)[0].sum(), call(preference.simpo, supply).sum(), chosen, rejected)


def test_the_odds_of_orpo(checkpoint):
    """TRL's function returns β·log σ(…), which its loss subtracts; the likelihood term stands elsewhere. It is fp32."""
    supply = supplied(random_tensors().logprobs, random_tensors().logprobs_ref, random_tensors().mask)
    means = [supply[side] / supply[f"{side}_tokens"] for side in ("chosen", "rejected")]
    theirs = -preference_trainer(checkpoint, "orpo").odds_ratio_loss(*means)[0] - means[0]
    torch.testing.assert_close(call(preference.orpo, supply), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("centring", [None, 0.01, 0.5])
@pytest.mark.parametrize("with_margin", [False, True])
def test_bradley_terry(checkpoint, centring, with_margin):
    trainer = preference_trainer(checkpoint, "reward", center_rewards_coefficient=centring)
    generator = torch.Generator().manual_seed(0)
    chosen, rejected, margins = torch.randn(3, 9, generator=generator, dtype=torch.float64) * 2
    chosen.requires_grad_(), rejected.requires_grad_()
    theirs = reward_loss(trainer, chosen, rejected, **({"margin": margins.abs()} if with_margin else {}))
    ours = reward_losses.bradley_terry(
        chosen, rejected, margins.abs(), centring=centring or 0.0, use_margins=with_margin
    ).mean()
    assert_equal(theirs, ours, chosen, rejected)


def test_every_loss_that_trl_has_too_is_compared_here():
    compared = {case.split(",")[0].split(" ")[0] for case in PAIRED} | {"kto", "simpo", "cpo", "orpo"}
    assert set(PREFERENCES) - compared == {"cdpo", "bco"}, "TRL 1.16 has neither"
