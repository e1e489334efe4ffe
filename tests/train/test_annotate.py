"""From judged rollouts to a batch, against numbers that are written out."""

import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.train.scenes import REWARDS, TOKENS, Table, annotated, config_of, gaps, groups_of, learner_of, rollout_of
from whet.rollout import Group
from whet.train.online.learner import ControllerState
from whet.train.online.update import update

COUNTS = [[2, 1], [3, 1]]  # trained tokens
TAUGHT = [1.0, 0.0, 0.25, 0.75]
RAW: dict[str, Any] = {"preset": "reinforce"}  # its advantages are the rewards, so they show


def rewards_of(sections: dict[str, Any], memory: ControllerState | None = None, rewards: Any = REWARDS) -> list[float]:
    """What the advantage saw of each rollout."""
    policy = Table()
    learner = learner_of(policy, config_of(RAW, sections=sections))
    batch, _, _ = annotated(learner, groups_of(policy, rewards=rewards), memory)
    return [float(row[mask][0]) for row, mask in zip(batch.advantages, batch.sequences.mask, strict=True)]


def test_rewards_reach_the_advantage_as_they_are() -> None:
    assert rewards_of({}) == TAUGHT


def test_the_ramp_before_the_limit() -> None:
    """Of at most 4 tokens the last 2 cost up to half a point: 3 tokens are half way."""
    shaping = {"rollout": {"max_tokens": 4}, "reward": {"overlong_tokens": 2, "overlong_penalty": 0.5}}
    assert rewards_of(shaping) == pytest.approx([1.0, 0.0, 0.25 - 0.5 * 0.5, 0.75])
    shaping["rollout"] = {"max_tokens": 3}
    assert rewards_of(shaping) == pytest.approx([1.0 - 0.5 * 0.5, 0.0, 0.25 - 0.5, 0.75])


def test_every_token_has_its_price() -> None:
    assert rewards_of({"reward": {"length_penalty": 0.1}}) == pytest.approx([0.8, -0.1, -0.05, 0.65])


def test_repetition_has_its_price() -> None:
    """Of (1, 2), (3), (2, 2, 0) and (0) the third has two 1-grams in three; no 2-gram comes twice."""
    assert rewards_of({"reward": {"repetition_penalty": 0.6, "repetition_ngram": 1}}) == pytest.approx(
        [1.0, 0.0, 0.25 - 0.6 / 3, 0.75]
    )
    assert rewards_of({"reward": {"repetition_penalty": 0.6, "repetition_ngram": 2}}) == pytest.approx(TAUGHT)


def test_penalties_come_before_clipping_and_clipping_before_normalisation() -> None:
    shaping = {"length_penalty": 0.1, "clip": [0.0, 0.5]}
    clipped = [0.5, 0.0, 0.0, 0.5]
    assert rewards_of({"reward": shaping}) == pytest.approx(clipped)
    assert rewards_of({"reward": {**shaping, "normalize": "batch"}}) == pytest.approx([1, -1, -1, 1], rel=1e-5)


def test_normalised_by_the_step() -> None:
    mean, deviation = statistics.fmean(TAUGHT), statistics.pstdev(TAUGHT)
    expected = [(reward - mean) / deviation for reward in TAUGHT]
    assert rewards_of({"reward": {"normalize": "batch"}}) == pytest.approx(expected, rel=1e-5)
    assert rewards_of({"reward": {"normalize": "batch"}}, rewards=[[0.5, 0.5], [0.5, 0.5]]) == [0, 0, 0, 0]
    later = ControllerState(kl_coefficient=0.0, moments=(4.0, 10.0, 100.0))  # what came before does not count
    assert rewards_of({"reward": {"normalize": "batch"}}, later) == pytest.approx(expected, rel=1e-5)


def test_normalised_by_all_rewards_so_far() -> None:
    """Two steps: the second is measured by the eight rewards of both."""
    policy = Table()
    config = config_of(RAW, sections={"reward": {"normalize": "running"}})
    learner, memory = learner_of(policy, config), ControllerState(kl_coefficient=0.0)
    _, seen, _ = annotated(learner, groups_of(policy), memory)
    assert seen.moments == (4, 2.0, 1 + 0.0625 + 0.5625)
    memory.learn(seen, config)
    second = [3.0, 2.0, 0.0, -1.0]
    batch, seen, _ = annotated(learner, groups_of(policy, rewards=[second[:2], second[2:]]), memory)
    both = [*TAUGHT, *second]
    expected = [(reward - statistics.fmean(both)) / statistics.pstdev(both) for reward in second]
    assert batch.advantages[:, 1].tolist() == pytest.approx(expected, rel=1e-5)
    assert seen.moments[0] == 8


def test_what_the_next_step_is_told() -> None:
    """The spread is that of the rewards as they were given; what was paid is after shaping and KL."""
    policy, reference = Table(), Table(seed=1)
    kl = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
    config = config_of({**RAW, "kl": kl}, sections={"reward": {"length_penalty": 0.1}})
    _, seen, metrics = annotated(learner_of(policy, config, reference), groups_of(policy))
    total = sum(d for row in gaps(policy, reference) for d in row)
    assert seen.paid == pytest.approx((sum(TAUGHT) - 0.1 * 7 - 0.5 * total) / 4, rel=1e-5)
    assert seen.kl == metrics["kl"] > 0
    assert seen.rollouts == 4


def test_the_kl_in_the_reward_of_each_token() -> None:
    """The score stands on the last token; every token pays for its own distance, and answers for all that follow."""
    policy, reference = Table(), Table(seed=1)
    kl = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
    config = config_of({"preset": "reinforce_pp", "scaling": "unscaled", "to_go": {"gamma": 0.5}, "kl": kl})
    batch, _, _ = annotated(learner_of(policy, config, reference), groups_of(policy))
    for row, (found, score) in enumerate(zip(gaps(policy, reference), TAUGHT, strict=True)):
        paid = [-0.5 * d for d in found]
        paid[-1] += score
        expected = [sum(0.5**k * r for k, r in enumerate(paid[t:])) for t in range(len(paid))]
        assert batch.advantages[row].tolist()[: 1 + len(paid)] == pytest.approx([0, *expected], rel=1e-4, abs=1e-6)
        assert not batch.advantages[row, 1 + len(paid) :].any()


def test_the_kl_in_the_reward_of_a_group() -> None:
    """A baseline within the group sees the whole rollout's KL."""
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "rloo", "kl": {"coefficient": 0.5}})
    batch, _, _ = annotated(learner_of(policy, config, reference), groups_of(policy))
    paid = [score - 0.5 * sum(row) for score, row in zip(TAUGHT, gaps(policy, reference), strict=True)]
    expected = [paid[0] - paid[1], paid[1] - paid[0], paid[2] - paid[3], paid[3] - paid[2]]
    assert batch.advantages[:, 1].tolist() == pytest.approx(expected, rel=1e-4)


def cut_off(policy: Any, which: set[int]) -> list[Group]:
    finish = {True: "length", False: "stop"}
    return [
        [
            rollout_of(policy, tokens, reward, finish=finish[2 * g + i in which])  # type: ignore[arg-type]
            for i, (tokens, reward) in enumerate(zip(row, given, strict=True))
        ]
        for g, (row, given) in enumerate(zip(TOKENS, REWARDS, strict=True))
    ]


def test_completions_that_were_cut_off_are_left_out_of_the_loss_but_not_of_the_comparison() -> None:
    policy = Table()
    learner = learner_of(policy, config_of({"preset": "rloo"}, sections={"rollout": {"mask_truncated": True}}))
    batch, seen, _ = annotated(learner, cut_off(policy, {0}))
    assert batch.sequences.mask.sum(dim=1).tolist() == [0, 1, 3, 1]
    assert not batch.advantages[0].any()
    assert batch.advantages[1].tolist() == [0, -1, 0, 0]  # still one less than its neighbour
    assert seen.rollouts == 4
    nothing, _, _ = annotated(learner, cut_off(policy, {0, 1, 2, 3}))
    assert not nothing.sequences.mask.any()
    assert update(learner, nothing, step=1)["updates"] == 0
    kept = annotated(learner_of(policy, config_of({"preset": "rloo"})), cut_off(policy, {0, 1, 2, 3}))[0]
    assert kept.sequences.mask.sum(dim=1).tolist() == [2, 1, 3, 1]


@pytest.mark.parametrize("preset", ["reinforce", "rloo", "opo", "ppo", "reinforce_pp", "reinforce_pp_baseline"])
def test_a_cut_off_rollout_is_compared_by_its_whole_reward(preset: str) -> None:
    """Its KL penalty is that of the tokens it was sampled with: masking its loss moves nobody else's advantage."""
    policy, reference = Table(), Table(seed=1)
    algorithm = {"preset": preset, "kl": {"coefficient": 0.5}, "scaling": "unscaled"}
    batches = []
    for mask_truncated in (False, True):
        config = config_of(algorithm, sections={"rollout": {"mask_truncated": mask_truncated}})
        torch.manual_seed(0)  # a critic begins at random
        batches.append(annotated(learner_of(policy, config, reference), cut_off(policy, {0})))
    (plain, told, logged), (masked, told_masked, logged_masked) = batches
    assert masked.advantages[1:].tolist() == plain.advantages[1:].tolist()
    assert not masked.advantages[0].any()
    assert told_masked == told
    assert logged_masked["kl"] == logged["kl"] > 0
    for kept in (masked.logprobs_old, masked.logprobs_ref):
        assert kept is not None
        assert not kept[0].any()


def test_the_baseline_of_a_group_with_a_cut_off_rollout_by_hand() -> None:
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "rloo", "kl": {"coefficient": 0.5}}, sections={"rollout": {"mask_truncated": True}})
    batch, _, _ = annotated(learner_of(policy, config, reference), cut_off(policy, {0}))
    paid = [score - 0.5 * sum(row) for score, row in zip(TAUGHT, gaps(policy, reference), strict=True)]
    assert abs(0.5 * sum(gaps(policy, reference)[0])) > 0.1  # what the baseline would lose
    assert batch.advantages[1, 1].item() == pytest.approx(paid[1] - paid[0], rel=1e-4)


def test_a_pair_with_a_cut_off_side_has_the_margin_of_the_whole_pair() -> None:
    """Online DPO: the slope of the side that is trained is σ(−β(w − l)), l that of the side that is not."""
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "online_dpo"}, sections={"rollout": {"mask_truncated": True}})
    batch, _, _ = annotated(learner_of(policy, config, reference), cut_off(policy, {1}))
    chosen, rejected = (sum(row) for row in gaps(policy, reference)[:2])
    expected = 2 * 0.1 / (1 + math.exp(0.1 * (chosen - rejected)))
    assert batch.advantages[0, 1:3].tolist() == pytest.approx([expected] * 2, rel=1e-5)
    assert not batch.advantages[1].any()


def test_what_is_measured_and_whitened_is_what_is_trained() -> None:
    """The rollout that is left out is off by a lot: no statistic of the trained tokens may see it."""
    policy = Table()
    sections = {"rollout": {"mask_truncated": True}}
    algorithm = {"preset": "ppo", "importance_correction": "token_truncate"}
    groups = cut_off(policy, {2})
    groups[1][0] = rollout_of(policy, TOKENS[1][0], 25.0, error=0.7, finish="length")
    made = []
    for scaling in ("unscaled", "whiten"):
        learner = learner_of(policy, config_of({**algorithm, "scaling": scaling}, sections=sections))
        assert learner.critic is not None
        with torch.no_grad():
            learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
        made.append(annotated(learner, groups))
    (plain, _, metrics), (white, _, _) = made
    mask = plain.sequences.mask
    chosen = plain.advantages[mask].double()
    expected = (chosen - chosen.mean()) / chosen.std(correction=0)
    assert white.advantages[mask].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert not white.advantages[~mask].any()
    assert plain.values is not None
    assert plain.targets is not None
    wanted, missed = plain.targets[mask].tolist(), (plain.targets - plain.values)[mask].tolist()
    explained = 1 - statistics.pvariance(missed) / statistics.pvariance(wanted)
    assert metrics["critic/explained_variance"] == pytest.approx(explained, abs=1e-5)
    assert metrics["mismatch/max"] < 1e-6
    assert metrics["importance_correction/largest"] == pytest.approx(1.0)
    assert metrics["importance_correction/effective_sequences"] == pytest.approx(1.0)


def test_the_greedy_completion_is_the_baseline() -> None:
    policy = Table()
    groups = groups_of(policy)
    for group, greedy in zip(groups, (0.5, 1.0), strict=True):
        group.append(rollout_of(policy, (0, 2, 2, 2, 2), greedy))
    batch, seen, _ = annotated(learner_of(policy, config_of({"preset": "remax"})), groups)
    assert batch.advantages[:, 1].tolist() == [0.5, -0.5, -0.75, -0.25]
    assert batch.sequences.tokens.shape == (4, 4)  # it is not trained
    assert seen.rollouts == len(TAUGHT)  # nor counted


def test_the_greedy_reward_is_shaped_as_the_others_are() -> None:
    """Four tokens at 0.1 each come off the baseline as they come off a rollout of four tokens."""
    policy = Table()
    groups = groups_of(policy)
    for group, greedy in zip(groups, (0.5, 1.0), strict=True):
        group.append(rollout_of(policy, (0, 2, 2, 2, 2), greedy))
    shaping = {"reward": {"length_penalty": 0.1, "clip": [-1.0, 0.5]}}
    batch, _, _ = annotated(learner_of(policy, config_of({"preset": "remax"}, sections=shaping)), groups)
    own = [min(0.5, 1.0 - 0.2), 0.0 - 0.1, 0.25 - 0.3, min(0.5, 0.75 - 0.1)]
    baselines = [0.5 - 0.4, min(0.5, 1.0 - 0.4)]
    expected = [reward - baselines[i // 2] for i, reward in enumerate(own)]
    assert batch.advantages[:, 1].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_opo_weighs_each_reward_of_the_group_by_its_sampled_tokens(mask_truncated: bool) -> None:
    """R_i − Σ T_j·R_j / Σ T_j: (2·1 + 1·0)/3 and (3·¼ + 1·¾)/4, also where one of them is not trained on."""
    policy = Table()
    config = config_of({"preset": "opo"}, sections={"rollout": {"mask_truncated": mask_truncated}})
    batch, _, _ = annotated(learner_of(policy, config), cut_off(policy, {2}))
    baselines = [2 / 3, 1.5 / 4]
    assert batch.advantages[[0, 1, 3], 1].tolist() == pytest.approx(
        [1 - baselines[0], 0 - baselines[0], 0.75 - baselines[1]]
    )
    assert batch.advantages[2, 1].item() == pytest.approx(0 if mask_truncated else 0.25 - baselines[1])


def test_the_spread_of_the_corrections_is_measured_before_they_are_cut() -> None:
    """The sampler's log-probs are 0.1 too high: ρ = e^−0.1 of every token, e^−0.1T of a sequence of T tokens."""
    policy = Table()
    algorithm = {"preset": "grpo", "importance_correction": "sequence_mask", "sequence_mask": {"low": 0.8, "high": 3.0}}
    learner = learner_of(policy, config_of(algorithm, mismatch_limit=1.0))
    batch, _, metrics = annotated(learner, groups_of(policy, error=0.1))
    weights = [math.exp(-0.1 * count) for row in COUNTS for count in row]
    expected = [[w] * n if w >= 0.8 else [0] * n for w, n in zip(weights, [2, 1, 3, 1], strict=True)]
    for row, wanted in enumerate(expected):
        assert batch.correction[row, 1 : 1 + len(wanted)].tolist() == pytest.approx(wanted, rel=1e-5)
    assert metrics["importance_correction/effective_tokens"] == pytest.approx(1.0)
    share = sum(weights) ** 2 / (4 * sum(w * w for w in weights))
    assert metrics["importance_correction/effective_sequences"] == pytest.approx(share, rel=1e-5)
    assert metrics["importance_correction/largest"] == pytest.approx(math.exp(-0.1), rel=1e-5)
    assert metrics["importance_correction/dropped"] == pytest.approx(3 / 7)
    assert "importance_correction/dropped" not in annotated(learner_of(policy, config_of(RAW)), groups_of(policy))[2]


def test_the_entropy_bonus_grows_below_its_floor() -> None:
    policy = Table()
    entropies = torch.distributions.Categorical(logits=policy.logits.detach()).entropy()
    measured = float(entropies[[0, 1, 0, 1, 2, 2, 1]].mean())  # of the row before each of the seven choices
    for floor in (measured - 0.1, measured + 0.1):
        entropy = {"coefficient": 0.01, "floor": floor, "floor_coefficient": 3.0}
        batch, _, _ = annotated(learner_of(policy, config_of({**RAW, "entropy": entropy})), groups_of(policy))
        expected = 0.01 + (2 * 3.0 * 0.1 if floor > measured else 0)
        assert batch.entropy_coefficient == pytest.approx(expected, rel=1e-4)


def test_values_advantages_and_targets_of_a_critic() -> None:
    """The value before token t is that of the token before it: here one number for each of the four tokens."""
    policy = Table()
    config = config_of({"preset": "ppo", "scaling": "unscaled", "gae": {"gamma": 0.9, "lam": 0.8}})
    learner = learner_of(policy, config)
    assert learner.critic is not None
    worth = [0.1, -0.2, 0.4, 0.3]
    with torch.no_grad():
        learner.critic.head.weight.copy_(torch.tensor(worth))
        learner.critic.head.bias.fill_(0.05)
    batch, _, metrics = annotated(learner, groups_of(policy))
    assert batch.values is not None
    assert batch.targets is not None
    wanted, missed = [], []
    for row, (tokens, score) in enumerate(zip([t for group in TOKENS for t in group], TAUGHT, strict=True)):
        values = [worth[before] + 0.05 for before in tokens[:-1]]
        deltas = [0.9 * after - now for now, after in zip(values, [*values[1:], 0.0], strict=True)]
        deltas[-1] += score
        advantages = [sum((0.9 * 0.8) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]
        targets = [a + v for a, v in zip(advantages, values, strict=True)]
        span = slice(1, len(tokens))
        assert batch.values[row, span].tolist() == pytest.approx(values)
        assert batch.advantages[row, span].tolist() == pytest.approx(advantages, abs=1e-6)
        assert batch.targets[row, span].tolist() == pytest.approx(targets, abs=1e-6)
        wanted += targets
        missed += advantages
    explained = 1 - statistics.pvariance(missed) / statistics.pvariance(wanted)
    assert metrics["critic/explained_variance"] == pytest.approx(explained, abs=1e-5)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("model", ["separate", "shared"])
def test_a_rollout_that_was_cut_off_is_worth_what_the_critic_expects_after_it(model: str, packed: bool) -> None:
    """δ of the last token is r + γ·V(after it) − V where the limit cut it off, and r − V where it ended by itself."""
    policy = Table()
    gae = {"gamma": 0.9, "lam": 0.8}
    critic = {"model": model, "bootstrap_truncated": True}
    config = config_of(
        {"preset": "ppo", "scaling": "unscaled", "gae": gae}, sections={"critic": critic}, padding_free=packed
    )
    learner = learner_of(policy, config)
    assert learner.critic is not None
    worth = [0.1, -0.2, 0.4, 0.3]
    with torch.no_grad():
        learner.critic.head.weight.copy_(torch.tensor(worth))
        learner.critic.head.bias.fill_(0.05)
    batch, _, _ = annotated(learner, cut_off(policy, {0, 3}))
    assert batch.targets is not None
    for row, (tokens, score) in enumerate(zip([t for group in TOKENS for t in group], TAUGHT, strict=True)):
        values = [worth[before] + 0.05 for before in tokens]  # the last one is that of the state after the last token
        if row not in {0, 3}:
            values[-1] = 0.0
        deltas = [0.9 * after - now for now, after in pairwise(values)]
        deltas[-1] += score
        advantages = [sum((0.9 * 0.8) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]
        span = slice(1, len(tokens))
        assert batch.advantages[row, span].tolist() == pytest.approx(advantages, abs=1e-6)
        targets = [a + v for a, v in zip(advantages, values, strict=False)]
        assert batch.targets[row, span].tolist() == pytest.approx(targets, abs=1e-6)


def test_a_cut_is_an_end_unless_told_otherwise() -> None:
    """The judge has scored the text as it was cut off, and the limit is part of the task: V = 0 after it."""
    policy = Table()
    batches = []
    for which in (set(), {0, 1, 2, 3}):
        learner = learner_of(policy, config_of({"preset": "ppo"}))
        assert learner.critic is not None
        with torch.no_grad():
            learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
        batches.append(annotated(learner, cut_off(policy, which))[0])
    assert batches[0].advantages.tolist() == batches[1].advantages.tolist()
