"""Our rows equal TRL's losses, in value and gradient, under the settings that each case states.

The advantages are given here; `test_advantages.py` compares how they are made.
"""

from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="trl is not installed: `make test-parity` has a venv with it")

import torch
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from tests.parity.ours import our_loss, row
from tests.parity.tensors import LENGTHS, random_tensors
from tests.parity.theirs import trl_loss, trl_scored, trl_trainer
from whet.algorithms import policy_loss
from whet.algorithms.cells import bind, call

pytestmark = pytest.mark.parity

SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
GMPO = {"trainer": GMPOTrainer, "config": GMPOConfig}
EQUAL = {  # case → our row, and the settings of TRL under which it computes the same
    "grpo": (row("grpo"), {"loss_type": "grpo"}),
    "grpo, uneven clip": (row("grpo", low=0.1, high=0.4), {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.4}),
    "grpo, dual clip": (row("grpo", surrogate=policy_loss.dual_clip, bound=1.5), {"loss_type": "grpo", "delta": 1.5}),
    "dr_grpo": (row("dr_grpo"), {"loss_type": "dr_grpo"}),
    "dapo": (row("dapo"), {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}),
    "cispo": (row("cispo"), {"loss_type": "cispo", "epsilon_high": 5.0}),
    "sapo": (row("sapo"), {"loss_type": "sapo"}),
    "gspo": (row("gspo"), {**SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}),
    "gmpo": (row("gmpo"), {**GMPO, "epsilon": 0.4, "epsilon_high": 0.4}),
}
DRIFTS = (1.2, 5e-4)  # far from the old policy, and so near that some of GSPO's ratios are inside its clip


def assert_equal(theirs, ours):
    """Loss and both gradients. Our weights are fp32, everything else is float64."""
    for their, our in zip(theirs, ours, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("case", EQUAL)
def test_loss_and_gradient(checkpoint, case, drift):
    algorithm, settings = EQUAL[case]
    tensors = random_tensors(drift=drift)
    theirs, ours = trl_loss(trl_trainer(checkpoint, **settings), tensors), our_loss(algorithm, tensors)
    assert_equal(theirs, ours)
    assert ours[1].abs().max() > 1e-3


@pytest.mark.parametrize("case", ["grpo", "grpo, uneven clip", "dapo", "cispo", "gspo", "gmpo"])
def test_the_tensors_reach_the_clips(case):
    """Otherwise the test above would compare unclipped losses only."""
    tensors = random_tensors(drift=DRIFTS[0])
    ratio = (tensors.logprobs - tensors.logprobs_old).exp()[tensors.mask]
    gradient = our_loss(EQUAL[case][0], tensors)[1][tensors.mask]
    if case == "cispo":
        assert 0 < (ratio > 5).sum() < ratio.numel()
    else:
        assert 0 < (gradient == 0).sum() < gradient.numel()


@pytest.mark.parametrize("case", [case for case in EQUAL if case not in ("gspo", "gmpo")])
def test_default_kl_is_our_unbiased_estimator(checkpoint, case):
    """`use_bias_correction_kl` is on in TRL unless said otherwise; our default is k3."""
    algorithm, settings = EQUAL[case]
    trainer = trl_trainer(checkpoint, beta=0.1, **settings)
    assert trainer.args.use_bias_correction_kl
    tensors = random_tensors(drift=0.5)
    ours = our_loss(replace(algorithm, kl=policy_loss.unbiased), tensors, kl_coefficient=0.1)
    assert_equal(trl_loss(trainer, tensors), ours)


@pytest.mark.parametrize("case", EQUAL)
def test_uncorrected_kl_is_k3(checkpoint, case):
    algorithm, settings = EQUAL[case]
    trainer = trl_trainer(checkpoint, beta=0.1, use_bias_correction_kl=False, **settings)
    tensors = random_tensors(drift=0.5)
    assert_equal(trl_loss(trainer, tensors), our_loss(algorithm, tensors, kl_coefficient=0.1))


@pytest.mark.parametrize("case", EQUAL)
def test_accumulated_micro_batches(checkpoint, case):
    """Two accumulated micro-batches of TRL, each with as many sequences, add up to our one minibatch."""
    algorithm, settings = EQUAL[case]
    half = len(LENGTHS) // 2
    trainer = trl_trainer(checkpoint, per_device_train_batch_size=half, gradient_accumulation_steps=2, **settings)
    tensors = random_tensors(drift=0.5)
    whole = {"num_items_in_batch": tensors.mask.sum()}
    first, second = (trl_loss(trainer, tensors.rows(r), **whole) for r in (slice(half), slice(half, None)))
    theirs = (first[0] + second[0], *(torch.cat(pair) for pair in zip(first[1:], second[1:], strict=True)))
    assert_equal(theirs, our_loss(algorithm, tensors))


def test_on_policy_without_old_logprobs(checkpoint):
    """Where TRL skips the old log-probs it means a ratio of 1, which is what we compute."""
    tensors = random_tensors()
    theirs = trl_loss(trl_trainer(checkpoint, loss_type="dapo"), tensors, old_per_token_logps=None)
    assert_equal(theirs, our_loss(row("dapo"), tensors.having(logprobs_old=tensors.logprobs)))


CORRECTIONS = {  # mode of TRL → our cell, and the settings of TRL for the same bounds
    "sequence_mask": (policy_loss.sequence_mask, {}),  # TRL's default mode and bound, 3.0, are ours
    "sequence_truncate": (policy_loss.sequence_truncate, {"vllm_importance_sampling_clip_max": 2.0}),
    "token_truncate": (policy_loss.token_truncate, {"vllm_importance_sampling_clip_max": 2.0}),
    "token_mask": (
        policy_loss.token_mask,
        {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 5.0},
    ),
}


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_correction_for_the_sampler(checkpoint, mode):
    cell, bounds = CORRECTIONS[mode]
    trainer = trl_trainer(
        checkpoint, loss_type="grpo", vllm_importance_sampling_mode=mode, rewards=[0.0] * len(LENGTHS), **bounds
    )
    trainer.use_vllm = True  # turns the correction on; no vLLM is asked for anything
    kept = []
    for seed in range(12):  # ratios on both sides of a bound, some near it
        tensors = random_tensors(drift=0.5, mismatch=0.8, seed=seed)
        theirs = trl_scored(trainer, tensors)["importance_sampling_ratio"]
        ours = call(cell, vars(tensors))
        torch.testing.assert_close(ours, theirs * tensors.mask, rtol=1e-6, atol=0)  # the sampler's came as fp32
        kept.append((ours == call(bind(cell, {"high": 1e9}), vars(tensors)))[tensors.mask])
    assert 0 < torch.cat(kept).float().mean() < 1
    corrected = trl_loss(trainer, tensors, importance_sampling_ratio=theirs)
    assert_equal(corrected, our_loss(row("grpo"), tensors, correction=theirs * tensors.mask))


def test_correction_leaves_the_kl_alone(checkpoint):
    trainer = trl_trainer(checkpoint, loss_type="dapo", beta=0.1, epsilon_high=0.28)
    trainer.use_vllm = True
    tensors = random_tensors(drift=0.5, mismatch=0.3)
    weights = policy_loss.sequence_mask(tensors.logprobs_old, tensors.logprobs_sampled, tensors.mask)
    theirs = trl_loss(trainer, tensors, importance_sampling_ratio=weights)
    algorithm = row("dapo", kl=policy_loss.unbiased)
    assert_equal(theirs, our_loss(algorithm, tensors, kl_coefficient=0.1, correction=weights))


def test_entropy_bonus_of_rows_with_token_mean(checkpoint):
    trainer = trl_trainer(checkpoint, loss_type="dapo", epsilon_high=0.28, entropy_coef=0.05)
    tensors = random_tensors()
    theirs = trl_loss(trainer, tensors)
    assert_equal(theirs, our_loss(row("dapo"), tensors, entropy=0.05))
    assert theirs[2].abs().max() > 0
