"""What a batch holds, what is logged of it, and which models are asked: by hand, down to a single token."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.additive import arrays
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
from whet.distributed.world import World
from whet.train.online import old_logprobs as module
from whet.train.online.annotate import Everyone, annotate
from whet.train.online.learner import ControllerState
from whet.train.online.sampling import SampledGroups
from whet.train.setup.chosen_algorithm import Old

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
        wanted = [0.0, *(logprob(policy, a, b) for a, b in pairwise(tokens))]
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
    memory = ControllerState(kl_coefficient=0.0, deviation=0.5)
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


@pytest.mark.parametrize("micro_batch_tokens", [1, None])
def test_an_advantage_may_ask_for_log_probs_and_for_the_history(micro_batch_tokens: int | None) -> None:
    """Of a whole row: what is beyond its end is 0, however rows are read."""
    policy, reference = Table(), Table(seed=1)
    sums = {
        table: [sum(logprob(table, a, b) for a, b in pairwise(tokens)) for tokens in FLAT]
        for table in (policy, reference)
    }
    own = {"preset": "reinforce", "advantage": f"{__name__}:asks_old"}
    batch, _, _ = annotated(
        learner_of(policy, config_of(own, micro_batch_tokens=micro_batch_tokens)), groups_of(policy)
    )
    assert batch.advantages[:, 1].tolist() == pytest.approx(sums[policy], rel=1e-5)
    other = {"preset": "reinforce", "advantage": f"{__name__}:asks_ref"}
    batch, _, _ = annotated(
        learner_of(policy, config_of(other, micro_batch_tokens=micro_batch_tokens), reference), groups_of(policy)
    )
    assert batch.advantages[:, 1].tolist() == pytest.approx(sums[reference], rel=1e-5)
    past = {"preset": "reinforce", "advantage": f"{__name__}:asks_history"}
    memory = ControllerState(kl_coefficient=0.0, history=[0.25, 0.5])
    batch, _, _ = annotated(learner_of(policy, config_of(past)), groups_of(policy), memory)
    assert batch.advantages[:, 1].tolist() == [0.25, -0.75, -0.5, 0.0]


class Counting(World):
    """Counts what it is asked to send."""

    sent = 0

    def concat(self, tensor: Tensor) -> Tensor:
        Counting.sent += 1
        return super().concat(tensor)


def test_what_an_advantage_does_not_ask_for_does_not_travel() -> None:
    policy, reference = Table(), Table(seed=1)

    def sent(reference: Any = None, **algorithm: Any) -> int:
        config = config_of({"preset": "reinforce", **algorithm})
        world = Counting(rank=0, size=1, device=torch.device("cpu"))
        learner = replace(learner_of(policy, config, reference), world=world)
        sampled_groups = SampledGroups(config.rollout, learner.algorithm, world)
        sampled_groups.add(groups_of(policy))
        Counting.sent = 0
        annotate(
            learner,
            sampled_groups,
            ControllerState(kl_coefficient=config.algorithm.kl.coefficient).step_settings(config, tokens=0),
        )
        return Counting.sent

    least = sent()
    assert sent(advantage="to_go") == least + 1
    assert sent(advantage=f"{__name__}:asks_old") == least + 1
    assert sent(reference, advantage=f"{__name__}:asks_ref") == least + 1
    assert sent(reference, kl={"coefficient": 0.5, "place": "loss", "estimator": "k3"}) == least


def test_a_kl_in_the_loss_is_not_paid_for_in_the_reward() -> None:
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "reinforce", "kl": {"coefficient": 0.5, "place": "loss", "estimator": "k3"}})
    batch, seen, _ = annotated(learner_of(policy, config, reference), groups_of(policy))
    assert batch.advantages[:, 1].tolist() == [1.0, 0.0, 0.25, 0.75]
    assert seen.paid == 0.5


def test_advantages_are_whitened_over_what_is_trained() -> None:
    policy = Table()
    algorithm = {"preset": "dr_grpo", "scaling": "whiten"}
    config = config_of(algorithm, sections={"rollout": {"mask_truncated": True}})
    groups = groups_of(policy)
    groups[0][0] = replace(groups[0][0], finish="length")
    batch, _, _ = annotated(learner_of(policy, config), groups)
    trained = batch.advantages[batch.sequences.mask]
    assert len(trained) == 5
    assert float(trained.mean()) == pytest.approx(0, abs=1e-6)
    assert not batch.advantages[~batch.sequences.mask].any()


def last_rewards(token_rewards: Tensor, values: Tensor, *, gamma: float = 1.0) -> Tensor:
    """An advantage with a critic that discounts nothing."""
    return gamma * token_rewards + 0 * values


def test_what_discounts_nothing_is_paid_all_that_the_critic_expects_after_a_cut() -> None:
    policy = Table()
    algorithm = {"preset": "ppo", "scaling": "unscaled", "advantage": f"{__name__}:last_rewards"}
    config = config_of(algorithm, sections={"critic": {"bootstrap_truncated": True}})
    learner = learner_of(policy, config)
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
    groups = groups_of(policy)
    groups[0][0] = replace(groups[0][0], finish="length")  # ends with token 2
    batch, _, _ = annotated(learner, groups)
    assert batch.advantages[0].tolist() == pytest.approx([0, 0, 1.0 + 0.4, 0])
    assert batch.advantages[3].tolist() == pytest.approx([0, 0.75, 0, 0])


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
    config = config_of({"preset": preset, **kl}, padding_free=packed)
    learner = replace(learner_of(policy, config, Table(seed=1) if reference else None), old=old)
    annotated(learner, groups_of(policy))
    assert asked == [5 if packed else None] * expected  # two prompts, and completions less their last tokens


@pytest.mark.parametrize("model", ["separate", "shared"])
def test_no_split_changes_what_is_read(model: str) -> None:
    policy, reference = Table(), Table(seed=1)
    entropy = {"coefficient": 0.01, "floor": 9.0, "floor_coefficient": 3.0}
    algorithm = {"preset": "ppo", "kl": KL, "entropy": entropy}
    found = []
    for settings in ({}, {"micro_batch_tokens": 1}, {"micro_batch_tokens": 5, "padding_free": False}):
        critic = {"model": model, "bootstrap_truncated": True}
        learner = learner_of(policy, config_of(algorithm, sections={"critic": critic}, **settings), reference)
        assert learner.critic is not None
        with torch.no_grad():
            learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
        groups = [[replace(rollout, finish="length") for rollout in group] for group in groups_of(policy)]
        batch, seen, metrics = annotated(learner, groups)
        found.append((arrays(batch), {**metrics, "paid": seen.paid, "bonus": batch.entropy_coefficient}))
    (whole, logged), *others = found
    assert not whole["values"][~batch.sequences.mask].any()
    for split, said in others:
        assert said == pytest.approx(logged, rel=1e-5, abs=1e-6)
        assert all(torch.allclose(split[key], whole[key], atol=1e-6) for key in whole)


def test_a_shared_critic_is_read_in_the_pass_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Table()
    learner = learner_of(policy, config_of({"preset": "ppo"}, sections={"critic": {"model": "shared"}}))
    monkeypatch.setattr(type(learner.critic), "values", lambda *_: pytest.fail("a pass of its own"))
    batch, _, _ = annotated(learner, groups_of(policy))
    assert batch.values is not None


def test_where_no_model_has_to_be_asked_no_rows_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "passes", lambda *_: pytest.fail("a pass"))
    policy = Table()
    for critic in ({}, {"bootstrap_truncated": True}):
        learner = replace(learner_of(policy, config_of({"preset": "grpo"}, sections={"critic": critic})), old="sampled")
        groups = [[replace(rollout, finish="length") for rollout in group] for group in groups_of(policy)]
        batch, _, _ = annotated(learner, groups)
        assert batch.logprobs_old is not None


def test_of_nothing_that_is_trained_corrections_are_one() -> None:
    policy = Table()
    algorithm = {"preset": "grpo", "importance_correction": "sequence_mask"}
    config = config_of(algorithm, sections={"rollout": {"mask_truncated": True}}, mismatch_limit=9.0)
    groups = [[replace(rollout, finish="length") for rollout in group] for group in groups_of(policy, error=0.1)]
    _, _, metrics = annotated(learner_of(policy, config), groups)
    assert metrics["importance_correction/largest"] == 1.0
    assert metrics["importance_correction/dropped"] == 0.0
    assert metrics["mismatch/mean"] == 0.0


def test_corrections_of_one_token_by_hand() -> None:
    policy = Table()
    algorithm = {"preset": "reinforce", "importance_correction": "token_mask", "token_mask": {"low": 0.95, "high": 3.0}}
    config = config_of(algorithm, sections={"rollout": {"prompts": 1, "group": 1}}, mismatch_limit=9.0)
    batch, _, metrics = annotated(learner_of(policy, config), [[rollout_of(policy, (2, 3), 0.75, error=0.1)]])
    assert batch.correction.tolist() == [[0.0, 0.0]]
    assert metrics["importance_correction/dropped"] == 1.0
    assert metrics["importance_correction/largest"] == pytest.approx(math.exp(-0.1), rel=1e-5)
    both = config_of(algorithm, sections={"rollout": {"prompts": 1, "group": 2}}, mismatch_limit=9.0)
    group = [rollout_of(policy, (2, 3), 0.75, error=error) for error in (0.1, -0.2)]
    _, _, metrics = annotated(learner_of(policy, both), [group])
    assert metrics["importance_correction/largest"] == pytest.approx(math.exp(0.2), rel=1e-5)
    assert metrics["importance_correction/dropped"] == 0.5
