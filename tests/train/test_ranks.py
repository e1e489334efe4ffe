"""A step on several ranks, one perhaps without a rollout, is the step of one process: batch, log and gradient."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.contracts.additive import arrays
from tests.contracts.fake_ranks import on_ranks
from tests.train.scenes import ALONE, REWARDS, TOKENS, Table, config_of, learner_of, rollout_of
from tests.train.test_token_record import KEPT, Letters
from whet.distributed.world import World
from whet.rollout import Group, spelled
from whet.runs.logs import json_line
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, StepOutcome
from whet.train.online.sampling import SampledGroups, rollout_rows
from whet.train.online.token_record import TokenRecord
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import Old

KL = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
CUT = {"mask_truncated": True}
MASKED = {"importance_correction": "token_mask", "token_mask": {"low": 0.93, "high": 3.0}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "kl": ({"preset": "grpo", "kl": {"coefficient": 0.5}}, {"rollout": CUT}, {}),
    "paid": ({"preset": "reinforce_pp", "kl": KL}, {"reward": {"normalize": "batch"}}, {}),
    "critic": ({"preset": "ppo", "kl": KL}, {"critic": {"bootstrap_truncated": True}}, {"target_kl": 1e-9}),
    "greedy": ({"preset": "remax"}, {"reward": {"length_penalty": 0.1}}, {}),
    "masked": ({"preset": "grpo", **MASKED}, {"rollout": CUT}, {"epochs": 2, "minibatches": 2}),
    "dpo": ({"preset": "online_dpo"}, {}, {}),
    "sequences": ({"preset": "gspo"}, {}, {}),
    "own": ({"preset": "grpo"}, {"rollout": CUT}, {}),
    "sampled": ({"preset": "ppo", "kl": KL}, {"rollout": CUT}, {}),
    "sampled alone": ({"preset": "grpo"}, {}, {"padding_free": False}),
    "whiten": ({"preset": "dr_grpo", "scaling": "whiten"}, {"rollout": CUT}, {"mismatch_limit": 0.09}),
}

OLD: dict[str, Old] = {"own": "own", "sampled": "sampled", "sampled alone": "sampled"}


def groups_of(policy: Any, needs_greedy: bool) -> list[Group]:
    """The first rollout was cut off; each is off by another amount."""
    groups = []
    for g, (row, given) in enumerate(zip(TOKENS, REWARDS, strict=True)):
        group = [
            rollout_of(policy, tokens, reward, error=0.04 * (2 * g + i), finish="stop" if g + i else "length")
            for i, (tokens, reward) in enumerate(zip(row, given, strict=True))
        ]
        groups.append(group + [rollout_of(policy, (0, 2, 2, 2, 2), 0.25 + g)] * needs_greedy)
    return groups


def stepped(case: str, world: World) -> tuple[Any, StepOutcome, dict[str, float], list[torch.Tensor], list[Any]]:
    """One step of this rank: its batch, what the next step is told, what is logged, the gradient, and the rows."""
    algorithm, sections, settings = CASES[case]
    policy = Table()
    sections = {**sections, "save": {"top_tokens": 3}}
    config = config_of(algorithm, sections=sections, **{"mismatch_limit": 1.0, **settings})
    learner = replace(learner_of(policy, config), world=world, old=OLD.get(case, "read"))
    if learner.algorithm.needs_reference:
        learner = replace(learner, reference=learner_of(policy, config, Table(seed=1)).reference)
    if learner.critic is not None:
        with torch.no_grad():
            learner.critic.head.weight.copy_(torch.tensor([0.1, -0.2, 0.4, 0.3]))
    sampled_groups = SampledGroups(config.rollout, learner.algorithm, world)
    sampled_groups.add(world.shard(groups_of(policy, learner.algorithm.needs_greedy)))
    record, memory = (
        TokenRecord(learner, Letters(), KEPT),
        ControllerState(kl_coefficient=config.algorithm.kl.coefficient),
    )
    batch, seen, metrics = annotate(learner, sampled_groups, memory.step_settings(config, tokens=0), record)
    metrics |= update(learner, batch, step=1, record=record)
    gradient = [p.grad for module in (policy, learner.critic) if module for p in module.parameters()]
    rows = record.gathered(sampled_groups).beside(spelled(rollout_rows(sampled_groups, batch, world), Letters()))
    written = [json.loads(json_line(row)) for row in rows]
    return batch, seen, metrics, [grad for grad in gradient if grad is not None], written


def numbers_of(row: Any) -> list[Any]:
    """Everything that is recorded, as one list."""
    if isinstance(row, dict):
        row = list(row.values())
    return [one for some in row for one in numbers_of(some)] if isinstance(row, list) else [row]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_step_of_several_ranks(case: str, size: int) -> None:
    batch, seen, metrics, gradient, rows = stepped(case, ALONE)
    assert metrics["mismatch/max"] == pytest.approx(0.12, rel=1e-4)
    parts = on_ranks(size, lambda world: stepped(case, world))
    assert sorted(p for mine, *_ in parts for p in mine.prompts.tolist()) == batch.prompts.tolist()
    for mine, told, said, pulled, written in parts:
        for row, wanted_row in zip(written, rows, strict=True):
            assert row.keys() == wanted_row.keys()
            assert numbers_of(row) == pytest.approx(numbers_of(wanted_row), abs=1.1e-4)
        assert said == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert list(said) == list(metrics)
        assert (told.paid, told.kl, told.rollouts) == pytest.approx((seen.paid, seen.kl, seen.rollouts), rel=1e-5)
        assert told.moments == pytest.approx(seen.moments)
        assert (mine.kl_coefficient, mine.entropy_coefficient) == (batch.kl_coefficient, batch.entropy_coefficient)
        for ours, theirs in zip(pulled, gradient, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
        for number in mine.prompts.unique().tolist():
            width = mine.sequences.tokens.shape[1]
            for key, array in arrays(mine).items():
                wanted = arrays(batch)[key][batch.prompts == number, :width]
                assert torch.allclose(array[mine.prompts == number], wanted, atol=1e-5), key
