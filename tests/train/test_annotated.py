"""What a batch holds, what is logged of it, and which models are asked: by hand, down to a single token."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.fake_ranks import on_ranks
from tests.train.scenes import (
    FLAT,
    Table,
    annotated,
    config_of,
    gaps,
    groups_of,
    learner_of,
    logprob,
    rollout_of,
)
from whet.train import annotate as module
from whet.train.annotate import Everyone
from whet.train.learner import Old
from whet.train.memory import Memory

KL = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}


def k3(gap: float) -> float:
    return math.exp(-gap) - 1 + gap


@pytest.mark.parametrize("old", ["read", "sampled", "own"])
def test_log_probs_come_from_where_the_learner_says(old: Old) -> None:
    """What annotation has compared with the sampler, an update need not; the sampler is off by 0.05 nats."""
    policy = Table()
    learner = replace(learner_of(policy, config_of({"preset": "grpo"})), old=old)
    batch, _, metrics = annotated(learner, groups_of(policy, error=0.05))
    error = 0.0 if old == "read" else 0.05
    for row, tokens in enumerate(FLAT):
        wanted = [0.0, *(logprob(policy, a, b) for a, b in zip(tokens, tokens[1:], strict=False))]
        wanted += [0.0] * (4 - len(wanted))
        if old == "own":
            assert batch.logprobs_old is None
        else:
            assert batch.logprobs_old is not None
            off = [x + error * bool(x) for x in wanted]
            assert batch.logprobs_old[row].tolist() == pytest.approx(off, rel=1e-5)
        if old == "read":
            assert batch.logprobs_sampled is None
        else:
            assert batch.logprobs_sampled is not None
            assert batch.logprobs_sampled[row].tolist() == pytest.approx([x + 0.05 * bool(x) for x in wanted], rel=1e-5)
    assert ("mismatch/mean" in metrics) == (old == "read")
    assert batch.correction.tolist() == batch.sequences.mask.float().tolist()


def test_the_kl_of_a_token_and_of_a_rollout() -> None:
    policy, reference = Table(), Table(seed=1)
    learner = learner_of(policy, config_of({"preset": "rloo", "kl": KL}), reference)
    batch, seen, metrics = annotated(learner, groups_of(policy))
    estimates = [k3(gap) for row in gaps(policy, reference) for gap in row]
    assert metrics["kl"] == pytest.approx(sum(estimates) / 7, rel=1e-5)
    assert metrics["kl_rollout"] == pytest.approx(sum(estimates) / 4, rel=1e-5)
    assert metrics["kl_coefficient"] == batch.kl_coefficient == 0.5
    assert seen.kl == metrics["kl"]
    assert batch.logprobs_ref is not None
    assert float(batch.logprobs_ref[2, 3]) == pytest.approx(logprob(reference, 2, 0), rel=1e-5)


def test_one_rollout_of_one_token() -> None:
    policy, reference = Table(), Table(seed=1)
    entropy = {"coefficient": 0.01, "floor": 9.0, "floor_coefficient": 3.0}
    config = config_of(
        {"preset": "reinforce", "kl": KL, "entropy": entropy}, sections={"rollout": {"prompts": 1, "group": 1}}
    )
    learner = learner_of(policy, config, reference)
    batch, seen, metrics = annotated(learner, [[rollout_of(policy, (2, 3), 0.75)]])
    gap = logprob(policy, 2, 3) - logprob(reference, 2, 3)
    assert metrics["kl"] == metrics["kl_rollout"] == seen.kl == pytest.approx(k3(gap), rel=1e-4)
    assert seen.paid == pytest.approx(0.75 - 0.5 * gap, rel=1e-5)
    assert seen.moments == (1.0, 0.75, 0.75**2)
    measured = float(torch.distributions.Categorical(logits=policy.logits[2].detach()).entropy())
    assert batch.entropy_coefficient == pytest.approx(0.01 + 2 * 3.0 * (9.0 - measured), rel=1e-4)


def test_the_temperature_is_logged_where_it_changes() -> None:
    policy = Table()
    span = {"temperature": 0.8, "adaptive_temperature": {"low": 0.5, "high": 2.0}}
    config = config_of({"preset": "grpo"}, sections={"rollout": span}, mismatch_limit=9.0)
    memory = Memory(kl_coefficient=0.0, deviation=0.5)
    batch, _, metrics = annotated(learner_of(policy, config), groups_of(policy), memory)
    assert metrics["temperature"] == batch.sampling.temperature == pytest.approx(1.6)
    scaled = policy.logits[0].detach() / 1.6
    assert batch.logprobs_old is not None
    assert float(batch.logprobs_old[0, 1]) == pytest.approx(float(scaled.log_softmax(-1)[1]), rel=1e-5)
    assert "temperature" not in annotated(learner_of(policy, config_of({"preset": "grpo"})), groups_of(policy))[2]


def test_groups_of_all_ranks_in_the_order_of_their_numbers() -> None:
    """Rank 0 has groups 2 and 0, rank 1 has group 1, rank 2 none; a group is two rows, and rows are of other widths."""
    whole = torch.arange(6.0)[:, None] + torch.tensor([0.0, 0.5, 0.25])

    def work(world: Any) -> Any:
        numbers = [[2, 0], [1], []][world.rank]
        everyone = Everyone(world=world, numbers=numbers, group=2)
        places = [2 * number + i for number in numbers for i in (0, 1)]
        width = 3 if world.rank != 1 else 2
        local = whole[places, :width]
        masks = everyone.rows(local > 2)
        assert masks.dtype == torch.bool
        own = everyone.own_rows(whole, width)
        assert own.tolist() == local.tolist()
        assert everyone.own_numbers.dtype == torch.int64
        return everyone.groups(torch.tensor([float(number) for number in numbers])), everyone.rows(local), masks

    for groups, rows, masks in on_ranks(3, work):
        assert groups.tolist() == [0, 1, 2]
        expected = whole.clone()
        expected[2:4, 2] = 0.0
        assert rows.tolist() == expected.tolist()
        assert masks.tolist() == (expected > 2).tolist()


def asks_old(rewards: Tensor, logprobs_old: Tensor) -> Tensor:
    """An advantage of the sums of old log-probs."""
    return logprobs_old.sum(dim=1).view(rewards.shape)


def asks_ref(rewards: Tensor, logprobs_ref: Tensor) -> Tensor:
    return logprobs_ref.sum(dim=1).view(rewards.shape)


def asks_history(rewards: Tensor, history: Tensor) -> Tensor:
    assert history.dtype == rewards.dtype
    return rewards - history.sum()


def test_an_advantage_may_ask_for_log_probs_and_for_the_history() -> None:
    policy, reference = Table(), Table(seed=1)
    sums = {
        table: [sum(logprob(table, a, b) for a, b in zip(tokens, tokens[1:], strict=False)) for tokens in FLAT]
        for table in (policy, reference)
    }
    own = {"preset": "reinforce", "advantage": f"{__name__}:asks_old"}
    batch, _, _ = annotated(learner_of(policy, config_of(own)), groups_of(policy))
    assert batch.advantages[:, 1].tolist() == pytest.approx(sums[policy], rel=1e-5)
    other = {"preset": "reinforce", "advantage": f"{__name__}:asks_ref"}
    batch, _, _ = annotated(learner_of(policy, config_of(other), reference), groups_of(policy))
    assert batch.advantages[:, 1].tolist() == pytest.approx(sums[reference], rel=1e-5)
    past = {"preset": "reinforce", "advantage": f"{__name__}:asks_history"}
    memory = Memory(kl_coefficient=0.0, history=[0.25, 0.5])
    batch, _, _ = annotated(learner_of(policy, config_of(past)), groups_of(policy), memory)
    assert batch.advantages[:, 1].tolist() == [0.25, -0.75, -0.5, 0.0]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("old", "preset", "reference", "expected"),
    [
        ("read", "grpo", False, 1),
        ("sampled", "grpo", False, 0),
        ("own", "grpo", False, 0),
        ("read", "grpo", True, 2),
        ("sampled", "grpo", True, 1),
        ("sampled", "ppo", False, 0),
    ],
)
def test_no_model_is_asked_more_than_it_must_be(
    old: Old, preset: str, reference: bool, expected: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    original = module.read_tokens

    def noted(*given: Any, packing: Any = None, **more: Any) -> Any:
        assert not torch.is_grad_enabled()
        asked.append(None if packing is None else len(packing.tokens))
        return original(*given, packing=packing, **more)

    monkeypatch.setattr(module, "read_tokens", noted)
    policy = Table()
    kl = {"kl": {"coefficient": 0.5}} if reference else {}
    config = config_of({"preset": preset, **kl}, packed=packed)
    learner = replace(learner_of(policy, config, Table(seed=1) if reference else None), old=old)
    annotated(learner, groups_of(policy))
    assert asked == [5 if packed else None] * expected  # two prompts, and completions less their last tokens


def test_of_nothing_that_is_trained_corrections_are_one() -> None:
    policy = Table()
    algorithm = {"preset": "grpo", "correction": "mask_sequences"}
    config = config_of(algorithm, sections={"rollout": {"mask_truncated": True}}, mismatch_limit=9.0)
    groups = [[replace(rollout, finish="length") for rollout in group] for group in groups_of(policy, error=0.1)]
    _, _, metrics = annotated(learner_of(policy, config), groups)
    assert metrics["correction/largest"] == 1.0
    assert metrics["correction/dropped"] == 0.0
    assert metrics["mismatch/mean"] == 0.0


def test_corrections_of_one_token_by_hand() -> None:
    policy = Table()
    algorithm = {"preset": "reinforce", "correction": "mask_tokens", "mask_tokens": {"low": 0.95, "high": 3.0}}
    config = config_of(algorithm, sections={"rollout": {"prompts": 1, "group": 1}}, mismatch_limit=9.0)
    batch, _, metrics = annotated(learner_of(policy, config), [[rollout_of(policy, (2, 3), 0.75, error=0.1)]])
    assert batch.correction.tolist() == [[0.0, 0.0]]
    assert metrics["correction/dropped"] == 1.0
    assert metrics["correction/largest"] == pytest.approx(math.exp(-0.1), rel=1e-5)
