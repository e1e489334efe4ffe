"""What is recorded of single tokens, by hand: a policy that is a table, so that every number can be said."""

import copy
import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.train.scenes import ALONE, FLAT, Table, config_of, groups_of, learner_of, logprob
from whet.rollout import Group, spelled
from whet.runs.logs import json_line
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, Learner
from whet.train.online.sampling import SampledGroups, rollout_rows
from whet.train.online.token_record import TokenRecord
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import Old

KEPT = 2  # of the test recipe's steps
COLUMNS = ["old_logprobs", "entropies", "ratios", "reference_logprobs", "values"]


class Letters:
    """As much of a tokenizer as is asked for."""

    def decode_many(self, rows: list[list[int]]) -> list[str]:
        return ["".join(f"<{token}>" for token in row) for row in rows]


def learner_with(policy: Table, config: Any, *, old: Old = "read", lr: float = 0.0, **more: Any) -> Learner:
    optimizer = torch.optim.SGD(policy.parameters(), lr=lr)
    return replace(learner_of(policy, config, optimizer=optimizer, **more), old=old)


def recorded(learner: Learner, groups: list[Group], step: int = KEPT) -> list[dict[str, Any]]:
    """The rows of a step as they are written and read."""
    config = learner.config
    sampled = SampledGroups(config.rollout, learner.algorithm, ALONE)
    sampled.add(groups)
    record, settings = (
        TokenRecord(learner, Letters(), step),
        ControllerState(kl_coefficient=config.algorithm.kl.coefficient),
    )
    batch, *_ = annotate(learner, sampled, settings.step_settings(config, tokens=0), record)
    update(learner, batch, step=1, record=record)
    rows = spelled(rollout_rows(sampled, batch, ALONE), Letters())
    return [json.loads(json_line(row)) for row in record.gathered(sampled).beside(rows)]


def chosen(policy: Table) -> list[list[float]]:
    return [[logprob(policy, a, b) for a, b in pairwise(tokens)] for tokens in FLAT]


def spread(policy: Table) -> list[list[float]]:
    """The entropy of what follows each token but the last."""
    rows = [torch.distributions.Categorical(logits=policy.logits[before].detach()) for before in range(4)]
    return [[float(rows[before].entropy()) for before in tokens[:-1]] for tokens in FLAT]


def column(rows: list[dict[str, Any]], name: str) -> list[list[Any]]:
    return [row[name] for row in rows]


def near(numbers: list[list[float]], within: float = 6e-5) -> list[Any]:
    return [pytest.approx(row, abs=within) for row in numbers]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tokens", [4, 64])
def test_every_token_has_its_numbers(packed: bool, tokens: int) -> None:
    """Two epochs: ratios and clipping are those of the second, whose policy is the one after the first."""
    policy, reference = Table(), Table(seed=1)
    settings = {"padding_free": packed, "micro_batch_tokens": tokens}
    config, once = (
        config_of({"preset": "grpo", "kl": {"coefficient": 0.5}}, epochs=epochs, **settings) for epochs in (2, 1)
    )
    after = copy.deepcopy(policy)
    recorded(learner_with(after, once, lr=2.0, reference=reference), groups_of(policy))
    before = copy.deepcopy(policy)
    rows = recorded(learner_with(policy, config, lr=2.0, reference=reference), groups_of(policy, error=0.05))
    assert column(rows, "old_logprobs") == near(chosen(before))
    assert column(rows, "reference_logprobs") == near(chosen(reference))
    assert column(rows, "entropies") == near(spread(before))
    ratios = [
        [math.exp(new - old) for new, old in zip(*both, strict=True)]
        for both in zip(chosen(after), chosen(before), strict=True)
    ]
    assert column(rows, "ratios") == near(ratios)
    low, high = 0.8, 1.2
    wanted = [
        [place for place, r in enumerate(row) if (r > high if one["advantage"] > 0 else r < low)]
        for row, one in zip(ratios, rows, strict=True)
    ]
    assert column(rows, "clipped") == wanted
    assert 0 < sum(map(len, wanted)) < sum(map(len, ratios))
    sampled = [[0.0, *(value + 0.05 for value in row)] for row in chosen(before)]
    assert column(rows, "logprobs") == near(sampled, 6e-6)
    assert "values" not in rows[0]


def test_a_single_update_reads_what_nobody_read_before() -> None:
    policy = Table()
    before = copy.deepcopy(policy)
    rows = recorded(learner_with(policy, config_of({"preset": "grpo"}), old="own", lr=2.0), groups_of(policy))
    assert column(rows, "old_logprobs") == near(chosen(before))
    assert column(rows, "entropies") == near(spread(before))
    assert all("ratios" not in row and "reference_logprobs" not in row for row in rows)


def test_what_the_trainer_read_after_its_first_update_is_not_called_old() -> None:
    """With two minibatches and the sampler's log-probs, the second prompt is first read by the changed policy."""
    policy = Table()
    config = config_of({"preset": "grpo"}, minibatches=2, mismatch_limit=1.0)
    rows = recorded(learner_with(policy, config, old="sampled", lr=2.0), groups_of(policy, error=0.1))
    unknown = [set(row) == {None} for row in column(rows, "old_logprobs")]
    assert sorted(unknown) == [False, False, True, True]
    first = copy.deepcopy(Table())
    for is_unknown, row, wanted in zip(unknown, rows, chosen(first), strict=True):
        assert len(row["entropies"]) == len(row["ratios"]) == len(wanted)
        if not is_unknown:
            assert row["old_logprobs"] == pytest.approx(wanted, abs=6e-6)
            assert row["ratios"] == pytest.approx([math.exp(-0.1)] * len(wanted), abs=6e-5)


def test_an_update_that_was_not_made_has_no_ratio() -> None:
    """The KL of the second minibatch is above the target; the third is never read."""
    policy = Table()
    config = config_of({"preset": "grpo"}, epochs=1, minibatches=2, target_kl=1e-9)
    groups = [*groups_of(policy)]
    rows = recorded(learner_with(policy, config, lr=2.0), groups)
    assert all(None not in row["ratios"] for row in rows)  # it was read, and then left out
    again = config_of({"preset": "grpo"}, epochs=3, minibatches=2, target_kl=1e-9)
    policy = Table()
    assert column(recorded(learner_with(policy, again, lr=2.0), groups), "ratios") == column(rows, "ratios")


def test_values_are_those_of_the_critic() -> None:
    policy = Table()
    learner = learner_with(policy, config_of({"preset": "ppo"}))
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
    rows = recorded(learner, groups_of(policy))
    worth = [0.1, -0.2, 0.4, 0.3]
    assert column(rows, "values") == near([[worth[before] for before in tokens[:-1]] for tokens in FLAT])
    for row in [rows[0], rows[2]]:  # the others are of one token
        assert row["max_advantage"] == pytest.approx(max(map(abs, row["advantages"])), abs=6e-5)
        assert row["advantage"] == pytest.approx(sum(row["advantages"]) / len(row["advantages"]), abs=6e-5)


@pytest.mark.parametrize("old", ["read", "own"])
@pytest.mark.parametrize(("asked", "found"), [(2, 2), (9, 4)])
def test_the_likeliest_tokens(old: Old, asked: int, found: int) -> None:
    policy = Table()
    logits = policy.logits.detach().clone()
    config = config_of({"preset": "grpo"}, sections={"save": {"top_tokens": asked}})
    rows = recorded(learner_with(policy, config, old=old, lr=2.0), groups_of(policy))
    for row, tokens in zip(rows, FLAT, strict=True):
        likeliest = [logits[before].log_softmax(-1).sort(descending=True) for before in tokens[:-1]]
        assert row["top_tokens"] == [one.indices[:found].tolist() for one in likeliest]
        assert row["top_logprobs"] == near([one.values[:found].tolist() for one in likeliest])
        assert row["top_pieces"] == [[f"<{token}>" for token in some] for some in row["top_tokens"]]


def test_tokens_that_sampling_filters_out_are_no_alternatives() -> None:
    policy = Table()
    sections = {"save": {"top_tokens": 3}, "rollout": {"top_k": 2}}
    config = config_of({"preset": "grpo"}, sections=sections, mismatch_limit=100.0)
    rows = recorded(learner_with(policy, config), groups_of(policy))
    assert {len(some) for row in rows for some in row["top_tokens"]} == {2, 3}  # 3: the sampled one is kept besides
    assert all(len(a) == len(b) for row in rows for a, b in zip(row["top_tokens"], row["top_logprobs"], strict=True))


def test_what_is_not_trained_on_has_only_what_the_sampler_said() -> None:
    """A dropped group in front, and a truncated rollout that is left out: the numbers of the others stay theirs."""
    policy = Table()
    config = config_of({"preset": "dapo"}, sections={"rollout": {"mask_truncated": True}})
    groups = groups_of(policy, rewards=[[1.0, 1.0], [0.25, 0.75]])
    groups[1][0] = replace(groups[1][0], finish="length")
    rows = recorded(learner_with(policy, config), groups)
    assert [row["trained"] for row in rows] == [False, False, False, True]
    assert all(not {*COLUMNS, "clipped"} & row.keys() for row in rows[:3])
    assert rows[3]["old_logprobs"] == pytest.approx(chosen(policy)[3], abs=6e-6)
    assert column(rows, "logprobs") == near([[0.0, *row] for row in chosen(policy)], 6e-6)


@pytest.mark.parametrize("old", ["read", "own", "sampled"])
def test_a_step_is_the_same_with_and_without_a_record(old: Old) -> None:
    made = []
    for has_record in (True, False):
        policy = Table()
        config = config_of({"preset": "grpo"}, sections={"save": {"top_tokens": 2}})
        learner = learner_with(policy, config, old=old, lr=2.0)
        sampled = SampledGroups(config.rollout, learner.algorithm, ALONE)
        sampled.add(groups_of(policy))
        record = TokenRecord(learner, Letters(), KEPT) if has_record else None
        batch, _, metrics = annotate(
            learner, sampled, ControllerState(kl_coefficient=0).step_settings(config, tokens=0), record
        )
        made.append((metrics | update(learner, batch, step=1, record=record), policy.logits.tolist()))
    assert made[0] == made[1]


def test_steps_that_are_not_kept_have_no_record() -> None:
    config = config_of({"preset": "grpo"}, sections={"save": {"top_tokens": 2, "rollouts_every_steps": 5}})
    for step in (4, 5, 6, config.steps):
        rows = recorded(learner_with(Table(), config), groups_of(Table()), step=step)
        named = {*COLUMNS, "clipped", "top_tokens"} & {name for row in rows for name in row}
        assert bool(named) == (step in (5, config.steps))
