"""Where a name means another loss in TRL: the difference, as a number. docs/algorithms.md tells it in words."""

import pytest

pytest.importorskip("trl", reason="trl is not installed: `make test-parity` has a venv with it")

from dataclasses import replace

import torch
from trl import RLOOConfig, RLOOTrainer

from tests.parity.ours import our_loss, row
from tests.parity.tensors import GROUP, LENGTHS, random_tensors
from tests.parity.theirs import trl_loss, trl_trainer
from whet.algorithms import policy_loss
from whet.algorithms.table import ALGORITHMS

pytestmark = pytest.mark.parity

COUNTS = torch.tensor(LENGTHS, dtype=torch.float64)
SEQUENCE = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}


def close(actual, expected, rtol=1e-6):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-12)


def rloo_trainer(checkpoint, **settings):
    return trl_trainer(checkpoint, trainer=RLOOTrainer, config=RLOOConfig, **settings)


def test_default_loss_of_trl_is_dapo_without_the_wider_clip(checkpoint):
    """`epsilon_high` follows `epsilon` in TRL: only tokens between 1.2 and 1.28 with A > 0 tell the two apart."""
    trainer, tensors = trl_trainer(checkpoint), random_tensors(drift=0.3)
    assert trainer.loss_type == "dapo"
    theirs, ours = trl_loss(trainer, tensors)[1], our_loss(row("dapo"), tensors)[1]
    close(theirs, our_loss(row("dapo", high=0.2), tensors)[1])
    ratio = (tensors.logprobs - tensors.logprobs_old).exp()
    between = (ratio > 1.2) & (ratio <= 1.28) & (tensors.advantages[:, None] > 0) & tensors.mask
    assert between.any()
    close(theirs[~between], ours[~between])
    assert (theirs[between] == 0).all()
    assert (ours[between] != 0).all()


def test_dapo_of_trl_counts_the_tokens_of_groups_without_signal(checkpoint):
    """Dynamic sampling drops such a group (`drop_zero_variance`); in TRL it dilutes the others."""
    tensors = random_tensors()
    advantages = tensors.advantages.clone()
    advantages[GROUP:] = 0
    theirs = trl_loss(trl_trainer(checkpoint, epsilon_high=0.28), tensors.having(advantages=advantages))
    kept = tensors.rows(slice(GROUP))
    ours = our_loss(row("dapo"), kept)
    share = kept.mask.sum() / tensors.mask.sum()
    assert 0 < share < 1
    close(theirs[0], ours[0] * share)
    close(theirs[1][:GROUP], ours[1] * share)


def test_gspo_with_the_default_normaliser_of_trl_weighs_by_length(checkpoint):
    """`importance_sampling_level="sequence"` alone: a sequence counts by its length. The paper is loss_type="grpo"."""
    tensors = random_tensors(drift=5e-4)
    theirs = trl_loss(trl_trainer(checkpoint, **SEQUENCE), tensors)
    ours = our_loss(row("gspo"), tensors)
    share = COUNTS / COUNTS.mean()
    close(theirs[1], ours[1] * share[:, None])
    by_tokens = our_loss(replace(ALGORITHMS["gspo"], weighting=policy_loss.token_mean), tensors)
    close(theirs[0], by_tokens[0])


def test_gspo_of_trl_corrects_the_kl_by_the_ratio_of_the_sequence(checkpoint):
    """The unbiased estimator needs the token's own ratio; TRL has only the sequence's there."""
    tensors, beta = random_tensors(drift=0.5), 0.1
    settings = {"loss_type": "grpo", **SEQUENCE}
    without = trl_loss(trl_trainer(checkpoint, **settings), tensors)[0]
    theirs = (trl_loss(trl_trainer(checkpoint, beta=beta, **settings), tensors)[0] - without) / beta
    gspo = replace(ALGORITHMS["gspo"], kl=policy_loss.unbiased)
    ours = (our_loss(gspo, tensors, kl_coefficient=beta)[0] - our_loss(gspo, tensors)[0]) / beta
    log_ratio, k3 = tensors.logprobs - tensors.logprobs_old, policy_loss.k3(tensors.logprobs, tensors.logprobs_ref)
    by_sequence = ((log_ratio * tensors.mask).sum(1) / COUNTS).exp()[:, None]
    per_sequence = torch.stack([((r * k3) * tensors.mask).sum(1) / COUNTS for r in (by_sequence, log_ratio.exp())])
    expected_theirs, expected_ours = per_sequence.mean(1)
    close(theirs, expected_theirs)
    close(ours, expected_ours)
    assert abs(theirs / ours - 1) > 0.01


def test_cispo_of_trl_caps_the_ratio_itself(checkpoint):
    """`epsilon_high` = h is a cap at h in TRL and at 1 + h here; TRL never bounds the ratio from below."""
    tensors = random_tensors(drift=1.2)
    theirs = trl_loss(trl_trainer(checkpoint, loss_type="cispo", epsilon_high=2.0), tensors)
    close(theirs[1], our_loss(row("cispo", high=1.0), tensors)[1])
    same_number = our_loss(row("cispo", high=2.0), tensors)[1]
    ratio = (tensors.logprobs - tensors.logprobs_old).exp()
    capped = (ratio > 3) & tensors.mask
    assert capped.any()
    close(theirs[1][capped], same_number[capped] * 2 / 3)


def test_cispo_with_the_default_epsilon_of_trl_shrinks_the_gradient_to_a_fifth(checkpoint):
    """Without `epsilon_high` the cap is epsilon = 0.2, below the ratio of 1 that an on-policy token has."""
    tensors = random_tensors()
    on_policy = tensors.having(logprobs=tensors.logprobs_old)
    theirs = trl_loss(trl_trainer(checkpoint, loss_type="cispo"), on_policy)
    close(theirs[1], our_loss(row("cispo"), on_policy)[1] * 0.2)


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("grpo", {"loss_type": "grpo"}),
        ("sapo", {"loss_type": "sapo"}),
        ("dr_grpo", {"loss_type": "dr_grpo"}),
        ("gspo", {"loss_type": "grpo", **SEQUENCE}),
        ("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    ],
)
def test_a_completion_that_is_masked_out_still_counts_as_a_sequence_in_trl(checkpoint, preset, settings):
    """`mask_truncated_completions`: TRL divides by all sequences, we by those with a token to train."""
    tensors = random_tensors()
    mask = tensors.mask.clone()
    mask[[2, 6]] = False
    tensors = tensors.having(mask=mask)
    theirs, ours = trl_loss(trl_trainer(checkpoint, **settings), tensors), our_loss(row(preset), tensors)
    share = 1.0 if preset == "dapo" else (len(LENGTHS) - 2) / len(LENGTHS)  # DAPO divides by tokens in both
    close(theirs[0], ours[0] * share)
    close(theirs[1], ours[1] * share)


def test_rloo_has_the_same_gradient_on_policy_and_another_loss(checkpoint):
    """TRL: −min(ρA, clip(ρ)A) with ρ the product over the sequence. Ours: −A·log π."""
    tensors = random_tensors()
    on_policy = tensors.having(logprobs=tensors.logprobs_old)
    theirs, ours = trl_loss(rloo_trainer(checkpoint), on_policy), our_loss(row("rloo"), on_policy)
    close(theirs[1], ours[1])
    close(theirs[0], -tensors.advantages.mean())
    total = (on_policy.logprobs * tensors.mask).sum(1)
    close(ours[0], -(tensors.advantages * total).mean())


@pytest.mark.parametrize("drift", [0.05, 0.4])
def test_rloo_of_trl_scales_each_sequence_by_its_ratio_and_drops_it_outside_the_clip(checkpoint, drift):
    tensors = random_tensors(drift=drift)
    theirs, ours = trl_loss(rloo_trainer(checkpoint), tensors)[1], our_loss(row("rloo"), tensors)[1]
    ratio = ((tensors.logprobs - tensors.logprobs_old) * tensors.mask).sum(1).exp()
    clipped = torch.where(tensors.advantages > 0, ratio > 1.2, ratio < 0.8)
    close(theirs, ours * torch.where(clipped, 0.0, ratio)[:, None])
    assert 0 < clipped.sum() < len(clipped)


def test_the_product_of_ratios_clips_long_sequences_first(checkpoint):
    """The same drift of 5 % a token: RLOO in TRL loses all completions of four tokens or more, ours none."""
    tensors = random_tensors()
    tensors = tensors.having(
        logprobs=tensors.logprobs_old + 0.05, advantages=torch.ones(len(LENGTHS), dtype=torch.float64)
    )
    alive = trl_loss(rloo_trainer(checkpoint), tensors)[1].abs().sum(1) > 0
    assert torch.equal(alive, COUNTS < 4)  # exp(0.05·3) = 1.16, exp(0.05·4) = 1.22
    assert (our_loss(row("rloo"), tensors)[1].abs().sum(1) > 0).all()


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "sapo"])
def test_the_entropy_bonus_is_a_mean_over_tokens_for_every_loss_in_both(checkpoint, preset):
    tensors = random_tensors()
    theirs = trl_loss(trl_trainer(checkpoint, loss_type=preset, entropy_coef=0.05), tensors)[2]
    close(theirs, tensors.mask * (-0.05 / COUNTS.sum()))
    close(our_loss(row(preset), tensors, entropy=0.05)[2], theirs)
