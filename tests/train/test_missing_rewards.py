"""A rollout without a reward: the step is what it would be if that rollout had never been sampled."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.train.scenes import ALONE, Table, config_of, learner_of, rollout_of
from whet.records import NO_SCORE, Batch, Rollout, Score
from whet.rollout import Group
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, StepOutcome
from whet.train.online.missing import filled, least_rollouts
from whet.train.online.rollout_metrics import describe
from whet.train.online.sampling import SampledGroups, rollout_rows
from whet.train.online.update import update

# Prompts of one token; three rollouts of the first and of the second prompt.
FIRST = [((0, 1, 2), 1.0), ((0, 3), 0.25), ((0, 2, 1, 3), 0.5)]
SECOND = [((1, 2, 2, 0), 0.75), ((1, 0), 0.0), ((1, 3, 1), 2.0)]
LOST = ((0, 2, 2, 2, 1), math.nan)  # the fourth of the first prompt
SHAPED: dict[str, Any] = {"reward": {"length_penalty": 0.1, "normalize": "batch"}}


def groups_for(policy: Any, rows: list[list[tuple[tuple[int, ...], float]]]) -> list[Group]:
    return [[rollout_of(policy, tokens, reward) for tokens, reward in group] for group in rows]


def trained(
    algorithm: dict[str, Any], rows: list[list[Any]], *, group: int, sections: dict[str, Any] | None = None
) -> tuple[torch.Tensor, Batch, StepOutcome, dict[str, float]]:
    """The gradient of one step on these groups, and what the step was told."""
    policy, reference = Table(), Table(seed=1)
    more = {**(sections or {}), "rollout": {"prompts": len(rows), "group": group}}
    learner = learner_of(policy, config_of(algorithm, sections=more), reference)
    sampled = SampledGroups(learner.config.rollout, learner.algorithm, ALONE)
    sampled.add(groups_for(policy, rows))
    settings = ControllerState(kl_coefficient=learner.config.algorithm.kl.coefficient)
    batch, outcome, metrics = annotate(learner, sampled, settings.step_settings(learner.config, tokens=0))
    metrics |= update(learner, batch, step=1)
    assert policy.logits.grad is not None
    return policy.logits.grad, batch, outcome, metrics


def alone(algorithm: dict[str, Any], sections: dict[str, Any] | None = None) -> Any:
    """The same step on groups of three, without the fourth rollouts."""
    return trained(algorithm, [FIRST, SECOND], group=3, sections=sections)


PRESETS = ["reinforce", "rloo", "opo", "maxrl", "gpg", "grpo", "dr_grpo", "dapo", "gspo", "reinforce_pp", "online_dpo"]


@pytest.mark.parametrize("preset", [*PRESETS, "reinforce_pp_baseline"])
def test_the_gradient_is_that_of_the_batch_without_the_row(preset: str) -> None:
    algorithm = {"preset": preset, "kl": {"coefficient": 0.0 if preset == "online_dpo" else 0.3}}
    other = ((1, 1, 1, 1, 2), math.nan)
    with_lost, batch, outcome, metrics = trained(algorithm, [[*FIRST, LOST], [*SECOND, other]], group=4)
    without, _, expected, measured = alone(algorithm)
    assert with_lost.abs().max() > 1e-3
    torch.testing.assert_close(with_lost, without, rtol=1e-5, atol=1e-7)
    assert not batch.sequences.mask[3].any()
    assert not batch.sequences.mask[7].any()
    assert outcome.paid == pytest.approx(expected.paid, rel=1e-6)
    assert (outcome.rollouts, outcome.kl) == (6, pytest.approx(expected.kl, rel=1e-6))
    assert outcome.moments == pytest.approx(expected.moments)
    assert metrics["kl_rollout"] == pytest.approx(measured["kl_rollout"], rel=1e-6)


@pytest.mark.parametrize("scaling", ["whiten", "batch_deviation"])
def test_scalings_and_shaping_do_not_see_it_either(scaling: str) -> None:
    algorithm = {"preset": "grpo", "advantage": "center", "scaling": scaling, "entropy": {"floor": 5.0}}
    both = [[*FIRST, LOST], [*SECOND, ((1, 3), math.nan)]]
    with_lost, *_ = trained(algorithm, both, group=4, sections=SHAPED)
    torch.testing.assert_close(with_lost, alone(algorithm, SHAPED)[0], rtol=1e-5, atol=1e-7)


def test_groups_may_lose_different_numbers_of_rollouts() -> None:
    """GRPO by hand: each group is standardised over the rewards that it has."""
    rows = [[*FIRST, LOST], [*SECOND, ((1, 3), 1.0)]]
    _, batch, _, _ = trained({"preset": "grpo"}, rows, group=4)
    for start, rewards in ((0, [1.0, 0.25, 0.5]), (4, [0.75, 0.0, 2.0, 1.0])):
        given = torch.tensor(rewards)
        wanted = (given - given.mean()) / (given.std() + 1e-6)
        found = [float(batch.advantages[start + i][batch.sequences.mask[start + i]][0]) for i in range(len(rewards))]
        assert found == pytest.approx(wanted.tolist(), rel=1e-5)


def test_a_critic_learns_nothing_from_it() -> None:
    algorithm = {"preset": "ppo", "kl": {"coefficient": 0.1}}
    rows = [[*FIRST, LOST], [*SECOND, ((1, 3), math.nan)]]
    with_lost, _, _, metrics = trained(algorithm, rows, group=4)
    without, _, _, measured = alone(algorithm)
    torch.testing.assert_close(with_lost, without, rtol=1e-5, atol=1e-7)
    for name in ("critic/loss", "critic/explained_variance"):
        assert metrics[name] == pytest.approx(measured[name], rel=1e-5)


def sampled_groups(preset: str, rewards: list[list[float]], greedy: list[float] | None = None) -> SampledGroups:
    policy = Table()
    more = {"rollout": {"prompts": len(rewards), "group": len(rewards[0])}}
    config = config_of({"preset": preset}, sections=more)
    found = SampledGroups(config.rollout, learner_of(policy, config).algorithm, ALONE)
    rows = [[*group, *([] if greedy is None else [greedy[i]])] for i, group in enumerate(rewards)]
    found.add([[rollout_of(policy, (0, 1), reward) for reward in group] for group in rows])
    return found


NAN = math.nan


@pytest.mark.parametrize(
    ("preset", "rewards", "trained_on"),
    [
        ("grpo", [[1.0, NAN, 0.0], [1.0, NAN, NAN], [NAN, NAN, NAN]], [0]),  # one reward has nothing to compare with
        ("reinforce", [[1.0, NAN, 0.0], [1.0, NAN, NAN], [NAN, NAN, NAN]], [0, 1]),
        ("dapo", [[1.0, NAN, 1.0], [1.0, 0.0, NAN], [NAN, 0.0, NAN]], [1]),  # those that are left are equal
        ("grpo", [[NAN, NAN, NAN]] * 3, []),
    ],
)
def test_a_prompt_with_too_few_rewards_is_not_trained_on(
    preset: str, rewards: list[list[float]], trained_on: list[int]
) -> None:
    found = sampled_groups(preset, rewards)
    assert list(found.numbers) == trained_on
    assert found.total == len(trained_on)
    assert preset == "dapo" or not found.is_short  # no round is drawn for prompts whose reward failed


def test_a_prompt_without_its_greedy_baseline_is_not_trained_on() -> None:
    assert list(sampled_groups("remax", [[1.0, 0.0], [1.0, 0.0]], greedy=[0.5, NAN]).numbers) == [0]


def test_rows_on_disk_and_metrics_leave_it_out() -> None:
    found = sampled_groups("grpo", [[1.0, NAN, 0.0], [NAN, NAN, NAN]])
    rows = rollout_rows(found, None, ALONE)
    assert [[row["reward"] for row in group] for group in rows] == [[1.0, None, 0.0], [None, None, None]]
    described, tokens = describe(rows)
    assert (described["reward/mean"], described["reward/std"]) == (0.5, 0.5)
    assert tokens == 6
    assert "reward/mean" not in describe(rows[1:])[0]


def test_what_functions_log_is_recorded_and_averaged() -> None:
    policy = Table()
    scores = [Score(reward=1.0, parts={}, extra={"note": "a"}, logged={"share": 0.5}), NO_SCORE]
    rollouts = [_with(rollout_of(policy, (0, 1), 0.0), score) for score in scores]
    config = config_of({"preset": "grpo"}, sections={"rollout": {"prompts": 1, "group": 2}})
    found = SampledGroups(config.rollout, learner_of(policy, config).algorithm, ALONE)
    found.add([rollouts])
    ((first, second),) = rollout_rows(found, None, ALONE)
    assert (first["extra"], first["logged"]) == ({"note": "a"}, {"share": 0.5})
    assert not {"extra", "logged"} & second.keys()
    assert describe([[first, second]])[0]["logged/share"] == 0.5


def _with(rollout: Rollout, score: Score) -> Rollout:
    return replace(rollout, score=score)


def test_what_a_missing_reward_is_replaced_by_for_dynamic_sampling() -> None:
    assert filled([None, 2.0, None, 3.0]) == [2.0, 2.0, 2.0, 3.0]
    assert filled([None, None]) == [0.0, 0.0]


def test_own_advantages_need_two_rollouts_and_groups_of_one_need_one() -> None:
    def own(rewards: torch.Tensor) -> torch.Tensor:
        return rewards

    assert [least_rollouts(own, group) for group in (1, 2, 8)] == [1, 2, 2]
