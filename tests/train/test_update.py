"""Advantages and updates against sums that are written out, on a policy that is a table of logits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.fake_ranks import on_ranks
from tests.train.scenes import (
    ALONE,
    Table,
    annotated,
    config_of,
    follow,
    gaps,
    groups_of,
    learner_of,
    logprob,
    prepared,
    pull,
)
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.records import Batch
from whet.train.online import update as update_module
from whet.train.optimizers.optimizer import NotFinite, make_optimizer


def test_advantages_of_a_group_by_hand() -> None:
    policy = Table()
    batch, agreement = prepared(policy, config_of({"preset": "rloo"}))
    assert batch.advantages.tolist() == [[0, 1, 1, 0], [0, -1, 0, 0], [0, -0.5, -0.5, -0.5], [0, 0.5, 0, 0]]
    assert batch.logprobs_ref is None
    assert "kl" not in agreement
    assert agreement["mismatch/max"] < 1e-6
    assert float(batch.logprobs_old[2, 3]) == pytest.approx(logprob(policy, 2, 0))


def test_the_gradient_of_rloo_by_hand() -> None:
    policy, config = Table(), config_of({"preset": "rloo"})
    batch, _ = prepared(policy, config)
    statistics = follow(policy, batch, config)
    quarter = [[0.25, 0.25], [-0.25], [-0.125] * 3, [0.125]]  # advantage / 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, quarter), atol=1e-6)
    assert statistics["grad_norm"] == pytest.approx(float(policy.logits.grad.norm()))


def test_the_gradient_of_grpo_by_hand() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    statistics = follow(policy, batch, config)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)  # rewards 1 and 0: ±0.5 from the mean, deviation √0.5
    b = 0.25 / (math.sqrt(0.125) + 1e-6)
    by_length = [[a / 8, a / 8], [-a / 4], [-b / 12] * 3, [b / 4]]  # / own length / 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, by_length), atol=1e-6)
    assert statistics["loss"] == pytest.approx(-(a - a - b + b) / 4, abs=1e-6)
    assert statistics["clip_fraction"] == 0
    assert statistics["updates"] == 1
    logged = ["loss", "updates", "clip_fraction", "surrogate/wrong_sign", "entropy", "approx_kl", "grad_norm"]
    assert statistics["surrogate/wrong_sign"] == 0
    assert list(statistics) == [*logged, "advantage/max", "advantage/positive", "ratio/max", "ratio/min"]


def test_a_token_without_an_advantage_is_not_clipped() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config, rewards=[[1.0, 1.0], [0.25, 0.75]])
    assert not batch.advantages[:2].any()
    assert follow(policy, batch, config)["clip_fraction"] == 0


def backwards(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE with the wrong sign where the advantage is positive."""
    return torch.where(advantages > 0, advantages, -advantages) * logprobs


def test_a_loss_that_pushes_against_its_advantages_is_seen() -> None:
    policy, config = Table(), config_of({"preset": "grpo", "surrogate": f"{__name__}:backwards"})
    batch, _ = prepared(policy, config)
    assert follow(policy, batch, config)["surrogate/wrong_sign"] == pytest.approx(3 / 7)  # 2 + 1 of 7 tokens


def flat(logprobs: Tensor) -> Tensor:
    """A surrogate without a gradient."""
    return torch.zeros_like(logprobs)


def test_a_surrogate_that_trains_nothing_is_refused() -> None:
    policy, config = Table(), config_of({"preset": "reinforce", "surrogate": f"{__name__}:flat"})
    batch, _ = prepared(policy, config)
    with pytest.raises(RunFailed, match="'flat' has no gradient in the model's outputs, so it trains nothing"):
        follow(policy, batch, config)


CALLS: list[Tensor] = []


def counted(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE that is noticed."""
    CALLS.append(logprobs)
    return -advantages * logprobs


def test_the_surrogate_is_evaluated_once_for_loss_and_statistics() -> None:
    CALLS.clear()
    policy, config = Table(), config_of({"preset": "reinforce", "surrogate": f"{__name__}:counted"})
    batch, _ = prepared(policy, config)
    statistics = follow(policy, batch, config)
    assert len(CALLS) == 1
    assert statistics["clip_fraction"] == 0
    assert policy.logits.grad is not None
    assert policy.logits.grad.any()


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_rows_are_packed_and_entropies_have_a_graph_only_where_there_is_a_bonus(
    coefficient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = update_module.read_tokens

    def noted(*given: Any, packing: Any = None, entropy_gradient: bool = False, **more: Any) -> Any:
        asked.append((None if packing is None else len(packing.tokens), entropy_gradient))
        return original(*given, packing=packing, entropy_gradient=entropy_gradient, **more)

    monkeypatch.setattr(update_module, "read_tokens", noted)
    policy = Table()
    for packed, length in ((True, 2 + 1 + 2), (False, None)):  # two prompts, and completions less their last tokens
        config = config_of({"preset": "grpo", "entropy": {"coefficient": coefficient}}, padding_free=packed)
        batch, _ = prepared(policy, config)
        follow(policy, batch, config)
        assert asked.pop() == (length, coefficient > 0)


def test_a_loss_that_is_no_number_says_what_it_was_computed_from() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    with torch.no_grad():
        policy.logits.fill_(math.nan)
    with pytest.raises(NotFinite, match="the loss is nan") as failure:
        follow(policy, batch, config)
    assert failure.value.culprit.keys() == {"tokens", "logprobs", "advantages"}


def test_a_ratio_beyond_the_clip_no_longer_pulls() -> None:
    """Old log-probs are lowered by 1: every ratio is e > 1.2, so positive advantages are clipped, negative ones not."""
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    batch.logprobs_old.sub_(batch.sequences.mask.float())
    statistics = follow(policy, batch, config)
    a, b = math.e * 0.5 / (math.sqrt(0.5) + 1e-6), math.e * 0.25 / (math.sqrt(0.125) + 1e-6)
    assert torch.allclose(policy.logits.grad, pull(policy, [[0, 0], [-a / 4], [-b / 12] * 3, [0]]), atol=1e-5)
    assert statistics["clip_fraction"] == pytest.approx(3 / 7)  # 2 + 1 of 7 tokens
    assert statistics["approx_kl"] == pytest.approx(math.e - 2, abs=1e-5)  # ρ − 1 − log ρ
    assert (statistics["ratio/min"], statistics["ratio/max"]) == pytest.approx((math.e, math.e), rel=1e-5)
    assert statistics["advantage/max"] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))
    assert statistics["advantage/positive"] == pytest.approx(3 / 7)


def test_every_epoch_and_every_step_splits_the_prompts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve prompts in three minibatches, three epochs: each epoch takes every prompt once, with other company."""
    policy = Table()
    config = config_of(
        {"preset": "grpo"}, sections={"rollout": {"prompts": 12}}, epochs=3, minibatches=3, mismatch_limit=9.0
    )
    groups = groups_of(policy) * 6
    batch, _, _ = annotated(learner_of(policy, config), groups)
    seen: list[frozenset[int]] = []
    taken = update_module.take_batch

    def noted(of: Batch, rows: torch.Tensor) -> Batch:
        some = taken(of, rows)
        if of is batch:  # a minibatch, not one of its micro-batches
            seen.append(frozenset(some.prompts.tolist()))
        return some

    monkeypatch.setattr(update_module, "take_batch", noted)
    splits = []
    for step in (1, 2):
        seen.clear()
        update_module.update(learner_of(policy, config), batch, step=step)
        epochs = [seen[start : start + 3] for start in (0, 3, 6)]
        for epoch in epochs:
            assert sorted(prompt for minibatch in epoch for prompt in minibatch) == list(range(12))
        splits += [frozenset(epoch) for epoch in epochs]
    assert len(set(splits)) == 6  # of 5,775 that there are


def test_the_reference_enters_the_loss_and_the_statistics() -> None:
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "grpo", "weighting": "sequence_sum", "kl": {"coefficient": 0.5, "estimator": "k2"}})
    batch, metrics = prepared(policy, config, reference)
    batch.advantages.zero_()
    follow(policy, batch, config)
    found = gaps(policy, reference)
    k3 = [math.exp(-d) - 1 + d for row in found for d in row]  # what is logged is k3, whatever stands in the loss
    assert metrics["kl"] == pytest.approx(sum(k3) / 7, rel=1e-4)
    assert metrics["kl_coefficient"] == 0.5
    # d/dθ of 0.5 · d²/2 is 0.5 · d · ∇log π: a pull of −0.5 d, over 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, [[-0.5 * d / 4 for d in row] for row in found]), atol=1e-6)


def test_the_reference_enters_the_reward() -> None:
    policy, reference = Table(), Table(seed=1)
    kl = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
    batch, _ = prepared(policy, config_of({"preset": "reinforce", "kl": kl}), reference)
    gap = sum(logprob(policy, a, b) - logprob(reference, a, b) for a, b in ((1, 2), (2, 2), (2, 0)))
    assert batch.advantages[2].tolist() == pytest.approx([0] + [0.25 - 0.5 * gap] * 3, rel=1e-5)


def test_the_entropy_is_that_of_the_choices() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    entropies = torch.distributions.Categorical(logits=policy.logits.detach()).entropy()
    before = [0, 1, 0, 1, 2, 2, 1]  # the token before each of the seven choices
    assert follow(policy, batch, config)["entropy"] == pytest.approx(float(entropies[before].mean()), rel=1e-5)


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 2), (3, 2)])
def test_epochs_times_minibatches_updates(epochs: int, minibatches: int) -> None:
    policy, config = Table(), config_of({"preset": "grpo"}, epochs=epochs, minibatches=minibatches)
    optimizer = make_optimizer(policy, config.optimizer)
    batch, _ = prepared(policy, config)
    follow(policy, batch, config, optimizer)
    (state,) = optimizer.state.values()
    assert int(state["step"]) == epochs * minibatches


@pytest.mark.parametrize("cut", [0, 1])
def test_a_minibatch_without_a_trained_token_is_passed_over(cut: int) -> None:
    """Whichever of the two comes first, the other one is learned from."""
    policy = Table()
    config = config_of({"preset": "grpo"}, minibatches=2)
    batch, _ = prepared(policy, config)
    batch.sequences.mask[batch.prompts == cut] = False
    assert follow(policy, batch, config)["updates"] == 1


def one_token(policy: Table, config: OnlineConfig, ratio: float) -> Batch:
    """A batch of which one token is trained, e^ratio times as likely now as it was."""
    batch, _ = prepared(policy, config)
    mask = torch.zeros_like(batch.sequences.mask)
    mask[2, 3] = True
    assert batch.logprobs_old is not None
    return replace(
        batch,
        sequences=replace(batch.sequences, mask=mask),
        logprobs_old=(batch.logprobs_old - ratio) * mask,
        advantages=batch.advantages * mask,
        correction=batch.correction * mask,
    )


def test_what_is_logged_of_a_single_token_and_a_limit_that_is_reached_but_not_passed() -> None:
    policy = Table()
    plain = config_of({"preset": "grpo"})
    said = follow(policy, one_token(policy, plain, 1.0), plain)
    entropies = torch.distributions.Categorical(logits=policy.logits.detach()).entropy()
    assert said["approx_kl"] == pytest.approx(math.e - 2, rel=1e-5)
    assert said["entropy"] == pytest.approx(float(entropies[2]), rel=1e-5)
    assert said["clip_fraction"] == 0  # its advantage is negative
    for limit, updates in ((said["approx_kl"], 1), (0.99 * said["approx_kl"], 0)):
        config = config_of({"preset": "grpo"}, target_kl=limit)
        assert follow(policy, one_token(policy, config, 1.0), config)["updates"] == updates


def test_beyond_the_limit_nothing_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of two minibatches: the second one shows that the first step went too far, and is the last."""
    passes = []
    original = update_module.read_tokens

    def counted(*given: Any, **more: Any) -> Any:
        passes.append(1)
        return original(*given, **more)

    monkeypatch.setattr(update_module, "read_tokens", counted)
    policy, config = Table(), config_of({"preset": "grpo"}, target_kl=1e-3, epochs=3, minibatches=2)
    batch, _ = prepared(policy, config)
    said = follow(policy, batch, config, torch.optim.SGD(policy.parameters(), lr=30.0))
    assert said["updates"] == 1
    assert len(passes) == 2


def test_the_loss_and_the_norm_that_are_logged_are_the_mean_and_the_largest_of_the_updates() -> None:
    policy, config = Table(), config_of({"preset": "grpo", "advantage": "raw"}, minibatches=2)
    batch, _ = prepared(policy, config)
    alone = []
    for prompt in (0, 1):
        one = update_module.take_batch(batch, (batch.prompts == prompt).nonzero()[:, 0])
        alone.append(follow(policy, replace(one, prompts=torch.zeros_like(one.prompts)), config))
    said = follow(policy, batch, config)
    assert said["loss"] == pytest.approx(sum(one["loss"] for one in alone) / 2, rel=1e-5)
    assert said["grad_norm"] == pytest.approx(max(one["grad_norm"] for one in alone), rel=1e-6)
    assert alone[0]["grad_norm"] != pytest.approx(alone[1]["grad_norm"], rel=0.1)


def test_sums_over_tokens_are_exact_and_keep_no_graph() -> None:
    """2²⁴ + 1 is no float32."""
    tally = update_module.TokenSums(torch.device("cpu"))
    tally.add(entropy=torch.tensor(2.0**24, requires_grad=True), critic__loss=torch.tensor(3))
    tally.add(entropy=torch.tensor(1.0), critic__loss=torch.tensor(4))
    assert not tally.sums["entropy"].requires_grad
    totals = tally.totals(ALONE)
    assert (totals["entropy"], totals["critic/loss"], totals["tokens"]) == (2**24 + 1, 7, 0)


def test_the_mismatch_is_measured_and_limited() -> None:
    policy = Table()
    _, agreement = prepared(policy, config_of({"preset": "grpo"}), error=0.05)
    k3 = math.exp(-0.05) - 1 + 0.05  # of sampled − old
    assert agreement == pytest.approx({"mismatch/mean": 0.05, "mismatch/max": 0.05, "mismatch/kl": k3}, rel=1e-4)
    with pytest.raises(
        RunFailed, match=r"disagree by 0.2 nats .* \(limit 0.1\): the engine's weights are not those of the policy"
    ):
        prepared(policy, config_of({"preset": "grpo"}), error=0.2)


def test_the_farthest_ratios_are_of_trained_tokens_of_all_passes_before_clipping() -> None:
    policy = Table()
    config = config_of({"preset": "grpo"}, micro_batch_tokens=1)
    batch, _ = prepared(policy, config)
    assert batch.logprobs_old is not None
    for place, log_ratio in (((0, 1), 2.0), ((2, 3), -3.0), ((1, 2), 9.0)):  # the last one is padding
        batch.logprobs_old[place] -= log_ratio
    statistics = follow(policy, batch, config)
    assert statistics["ratio/max"] == pytest.approx(math.exp(2), rel=1e-4)
    assert statistics["ratio/min"] == pytest.approx(math.exp(-3), rel=1e-4)


def test_ranks_agree_on_the_farthest_ratio_and_advantage() -> None:
    """One prompt on each rank; one of three has none."""
    tokens = {(0, 1): 2.0, (3, 1): -1.0}

    def work(world: World) -> dict[str, float]:
        policy, config = Table(), config_of({"preset": "grpo"})
        batch, _ = prepared(policy, config)
        assert batch.logprobs_old is not None
        for place, log_ratio in tokens.items():
            batch.logprobs_old[place] -= log_ratio
        own = (batch.prompts % world.size == world.rank).nonzero()[:, 0]
        mine = update_module.take_batch(batch, own)
        return update_module.update(replace(learner_of(policy, config), world=world), mine, step=1)

    alone = work(ALONE)
    assert alone["ratio/max"] == pytest.approx(math.exp(2), rel=1e-5)
    assert alone["ratio/min"] == pytest.approx(math.exp(-1), rel=1e-5)
    for size in (2, 3):
        for said in on_ranks(size, work):
            for name in ("ratio/max", "ratio/min", "advantage/max", "advantage/positive"):
                assert said[name] == pytest.approx(alone[name], rel=1e-6), name
