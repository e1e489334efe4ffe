"""The groups of a step: who drew which, which are kept, what is drawn again; on one rank and on several."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from whet.algorithms.table import ALGORITHMS
from whet.config import RolloutConfig
from whet.distributed.world import World
from whet.records import Example, Rollout, Score
from whet.rollout import Group
from whet.train.online.sampling import SampledGroups

ALONE = World.alone()
ALL, MIXED, GREEDY = (ALGORITHMS[name] for name in ("grpo", "dapo", "remax"))
F, T = (1.0, 1.0), (0.0, 1.0)  # a flat group, a telling one


def group(name: str, rewards: tuple[float, ...]) -> Group:
    return [
        Rollout(
            example=Example(id=name, prompt="", answer=""),
            tokens=(1, 2),
            mask=(False, True),
            logprobs=(0.0, -1.0),
            text="",
            finish="stop",
            version=0,
            score=Score(reward=reward, parts={}),
        )
        for reward in rewards
    ]


def config(prompts: int = 3, max_resamples: int = 4, size: int = 2) -> RolloutConfig:
    return RolloutConfig(prompts=prompts, group=size, max_resamples=max_resamples)


def gathered(
    rounds: list[list[tuple[float, ...]]], algorithm: Any, world: World = ALONE, **settings: int
) -> SampledGroups:
    """Everything that is drawn in these rounds, each group named by its round and place; every rank adds its own."""
    sampled_groups = SampledGroups(config(**settings), algorithm, world)
    for number, rewards in enumerate(rounds):
        assert sampled_groups.is_short
        sampled_groups.add(world.shard([group(f"{number}.{place}", given) for place, given in enumerate(rewards)]))
    return sampled_groups


def test_one_round_is_enough_where_everything_is_kept() -> None:
    sampled_groups = gathered([[F, F, F]], ALL)
    assert not sampled_groups.is_short
    assert sampled_groups.total == 3
    assert sampled_groups.numbers == {0: 0, 1: 1, 2: 2}
    assert sampled_groups.metrics() == {"groups/drawn": 3.0, "groups/kept": 1.0}
    assert sampled_groups.greedy == {}


def test_a_dropped_group_is_replaced_by_the_next_that_tells_something() -> None:
    sampled_groups = gathered([[F, T, F], [F, F, T], [T, T, F]], MIXED)
    assert not sampled_groups.is_short
    assert sampled_groups.total == 3
    # Places count on through the rounds; the fourth telling group (place 7) is one too many and is not trained on.
    assert sampled_groups.numbers == {1: 0, 5: 1, 6: 2}
    assert [sampled_groups.drawn[place][0].example.id for place in sampled_groups.numbers] == ["0.1", "1.2", "2.0"]
    assert sampled_groups.metrics() == {"groups/drawn": 9.0, "groups/kept": pytest.approx(4 / 9)}


@pytest.mark.parametrize("max_resamples", [0, 1, 3])
def test_resampling_comes_to_an_end(max_resamples: int) -> None:
    sampled_groups = gathered([[F, T, F], *[[F, F, F]] * max_resamples], MIXED, max_resamples=max_resamples)
    assert not sampled_groups.is_short
    assert sampled_groups.rounds == max_resamples + 1
    assert sampled_groups.total == 1


def test_a_step_may_keep_nothing() -> None:
    sampled_groups = gathered([[F, F, F]], MIXED, max_resamples=0)
    assert sampled_groups.total == 0
    assert sampled_groups.numbers == {}
    assert sampled_groups.metrics() == {"groups/drawn": 3.0, "groups/kept": 0.0}


def test_the_likeliest_completion_is_no_member_of_its_group() -> None:
    sampled_groups = gathered([[(0.0, 1.0, 0.25), (1.0, 0.0, 0.75)]], GREEDY, prompts=2)
    assert {place: rollout.score.reward for place, rollout in sampled_groups.greedy.items()} == {0: 0.25, 1: 0.75}
    assert [[r.score.reward for r in sampled_groups.drawn[place]] for place in (0, 1)] == [[0.0, 1.0], [1.0, 0.0]]
    # Nor does it decide whether the group is kept: both members agree, and it does not.
    dropped = gathered(
        [[(1.0, 1.0, 0.0)]], replace(GREEDY, dynamic_sampling=MIXED.dynamic_sampling), prompts=1, max_resamples=0
    )
    assert dropped.total == 0


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_agree_on_what_one_process_would_keep(size: int) -> None:
    rounds = [[F, T, F, T], [T, F, F, F], [F, F, T, T]]
    alone = gathered(rounds, MIXED, prompts=4)
    assert list(alone.numbers) == [1, 3, 4, 10]

    def work(world: World) -> tuple[dict[int, int], dict[int, str], bool, dict[str, float]]:
        sampled_groups = gathered(rounds, MIXED, world, prompts=4)
        names = {place: rollouts[0].example.id for place, rollouts in sampled_groups.drawn.items()}
        return sampled_groups.numbers, names, sampled_groups.is_short, sampled_groups.metrics()

    parts = on_ranks(size, work)
    assert {place: number for numbers, *_ in parts for place, number in numbers.items()} == alone.numbers
    assert sum(len(numbers) for numbers, *_ in parts) == 4  # and no group is trained twice
    names = {place: name for _, mine, *_ in parts for place, name in mine.items()}
    assert names == {place: rollouts[0].example.id for place, rollouts in alone.drawn.items()}
    assert [said for *_, said in parts] == [alone.metrics()] * size
    assert not any(short for _, _, short, _ in parts)


def test_a_cell_sees_the_rewards_of_this_ranks_groups() -> None:
    seen: list[torch.Tensor] = []

    def keep(rewards: torch.Tensor) -> torch.Tensor:
        seen.append(rewards)
        return torch.tensor([True, False, True])

    sampled_groups = gathered([[(1, 1), (0, 1), (0, 1)]], replace(ALL, dynamic_sampling=keep), max_resamples=0)
    assert seen[0].tolist() == [[1, 1], [0, 1], [0, 1]]
    assert seen[0].dtype == torch.float32  # also where all of them are whole numbers
    assert sampled_groups.numbers == {0: 0, 2: 1}
