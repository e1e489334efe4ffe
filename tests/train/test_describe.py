"""Rollouts as rows for the disk and as metrics, computed by hand."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.small import small_model
from whet.config import RewardConfig
from whet.distributed.world import World
from whet.records import Example, Rollout, Score
from whet.rollout import spelled
from whet.train.online.rollout_metrics import describe
from whet.train.online.sampling import rollout_rows
from whet.train.setup.reward_grader import part_weights

_, TOKENIZER = small_model()
ALONE = World.alone()


def rollout(text: str, reward: float, *, finish: Any = "stop") -> Rollout:
    chosen = tuple(TOKENIZER.encode(text))
    return Rollout(
        example=Example(id="e", prompt="1+", answer="2"),
        tokens=(*TOKENIZER.encode("1+"), *chosen),
        mask=(False, False) + (True,) * len(chosen),
        logprobs=(0.0, 0.0) + (-0.5,) * len(chosen),
        text=text,
        finish=finish,
        version=3,
        score=Score(reward=reward, parts={"exact": reward / 2}),
    )


def drawn() -> Any:
    """Two groups, of which the second was dropped."""
    first = [rollout("abc", 1.0), rollout("d", 0.0, finish="length")]
    return SimpleNamespace(drawn={0: first, 1: [rollout("e", 2.0), rollout("ff", 2.0)]}, numbers={0: 0})


def batch() -> Any:
    mask = torch.tensor([[False, False, True, True, True], [False, False, True, False, False]])
    advantages = torch.tensor([[9.0, 9.0, 0.5, 0.25, 0.0], [9.0, 9.0, -1.0, 9.0, 9.0]])
    return SimpleNamespace(advantages=advantages, sequences=SimpleNamespace(mask=mask))


def test_a_row_says_what_was_chosen_and_what_it_was_worth() -> None:
    first, second, *dropped = spelled(rollout_rows(drawn(), batch(), ALONE), TOKENIZER)
    assert json.loads(json.dumps(first)) == {
        "group": 0,
        "id": "e",
        "prompt": "1+",
        "text": "abc",
        "pieces": ["a", "b", "c"],
        "tokens": TOKENIZER.encode("1+abc"),
        "mask": [False, False, True, True, True],
        "logprobs": [0.0, 0.0, -0.5, -0.5, -0.5],
        "finish": "stop",
        "version": 3,
        "reward": 1.0,
        "parts": {"exact": 0.5},
        "trained": True,
        "advantage": 0.25,
        "advantages": [0.5, 0.25, 0.0],
        "max_advantage": 0.5,
    }
    assert (second["advantage"], second["trained"]) == (-1.0, True)
    assert "advantages" not in second  # one number says it all
    assert [(row["group"], row["trained"], row["advantage"], row["pieces"]) for row in dropped] == [
        (1, False, 0.0, ["e"]),
        (1, False, 0.0, ["f", "f"]),
    ]


def test_metrics_count_every_rollout_also_of_dropped_groups() -> None:
    metrics, tokens = describe(rollout_rows(drawn(), batch(), ALONE))
    assert tokens == 3 + 1 + 1 + 2
    assert metrics == pytest.approx(
        {
            "reward/mean": 1.25,
            "reward/std": ((0.0625 + 1.5625 + 2 * 0.5625) / 4) ** 0.5,
            "parts/exact": 0.625,
            "reward/min": 0.0,
            "reward/max": 2.0,
            "length/mean": 7 / 4,
            "length/std": ((25 / 16 + 9 / 16 + 9 / 16 + 1 / 16) / 4) ** 0.5,
            "length/max": 3.0,
            # Ranks of the lengths 3, 1, 1, 2 are 4, 1.5, 1.5, 3; those of the rewards 1, 0, 2, 2 are 2, 1, 3.5, 3.5.
            "length/reward_correlation": (-0.75 + 1.5 - 1 + 0.5) / 4.5,
            "truncated": 0.25,
            "groups/zero_variance": 0.5,
            "groups/all_right": 0.5,
            "groups/all_wrong": 0.0,
            "prompts/duplicates": 0.5,
            "rollouts/duplicates": 0.0,
            "rollouts/repeated_4grams": 0.0,
        }
    )


def test_groups_of_one_have_no_variance() -> None:
    single = SimpleNamespace(drawn={0: [rollout("abc", 1.0)], 1: [rollout("e", 2.0)]}, numbers={})
    metrics, _ = describe(rollout_rows(single, None, ALONE))
    assert metrics["reward/mean"] == 1.5
    assert "groups/zero_variance" not in metrics


def test_a_step_without_an_update_has_rows_too() -> None:
    rows = rollout_rows(drawn(), None, ALONE)
    assert [row["trained"] for group in rows for row in group] == [False] * 4


def row(reward: float | None, tokens: list[int], *, prompt: str = "p", **parts: float) -> dict[str, Any]:
    given = {"prompt": prompt, "tokens": [0, *tokens], "mask": [False, *[True] * len(tokens)], "finish": "stop"}
    return {**given, "reward": reward, "parts": parts}


def kinds(*groups: list[Any]) -> tuple[float, float]:
    found, _ = describe(groups)
    assert found["groups/all_right"] + found["groups/all_wrong"] == found["groups/zero_variance"]
    return found["groups/all_right"], found["groups/all_wrong"]


def test_groups_of_equal_rewards_are_right_or_wrong_by_their_correctness() -> None:
    """Two of three groups are flat. The reward of the right one is the lowest of the step: it does not decide."""
    right = [row(0.0, [1], correct=1.0), row(0.0, [2], correct=1.0)]
    wrong = [row(1.0, [1], correct=0.0), row(1.0, [2], correct=0.0)]
    mixed = [row(0.0, [1], correct=0.0), row(1.0, [2], correct=1.0)]
    assert kinds(right, wrong, mixed) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert describe([right, wrong, mixed])[0]["correct"] == 0.5


def test_groups_of_unknown_correctness_are_right_nearer_to_the_highest_reward() -> None:
    flat = [[row(reward, [1]), row(reward, [2])] for reward in (-4.0, -2.1, -2.0, 0.0)]
    assert kinds(*flat) == (0.25, 0.75)  # the middle is as near to either: wrong
    assert kinds(*flat[2:]) == (0.5, 0.5)
    assert "correct" not in describe(flat)[0]


@pytest.mark.parametrize(("reward", "told"), [(0.0, (0, 1)), (-1.0, (0, 1)), (0.5, (1, 0))])
def test_one_reward_alone_is_right_if_it_is_positive(reward: float, told: tuple[float, float]) -> None:
    assert kinds([row(reward, [1]), row(reward, [2])], [row(reward, [3]), row(reward, [4])]) == told


def test_correctness_counts_the_rollouts_of_which_it_is_known() -> None:
    rows = [row(1.0, [1], correct=1.0), row(0.5, [2], correct=0.0), row(2.0, [3]), row(None, [4])]
    assert describe([rows])[0]["correct"] == 0.5


def test_repetition_is_counted_within_prompts_groups_and_completions() -> None:
    """Completions of two groups are not compared; 1 2 1 2 1 2 1 has the 4-grams 1212 and 2121, each twice."""
    first = [row(0.0, [1, 2]), row(1.0, [1, 2]), row(0.0, [1, 2, 1, 2, 1, 2, 1])]
    groups = [first, [row(0.0, [1, 2], prompt="q")], [row(0.0, [3])]]
    found, _ = describe(groups)
    assert found["rollouts/duplicates"] == 1 / 5
    assert found["rollouts/repeated_4grams"] == pytest.approx(0.5 / 5)
    assert found["prompts/duplicates"] == pytest.approx(1 / 3)
    assert found["reward/contradictions"] == 1.0  # the one completion that equals an earlier one


def test_equal_completions_with_other_rewards_contradict_the_first_one() -> None:
    same = [row(0.5, [1]), row(0.5, [1]), row(1.0, [1]), row(None, [1]), row(1.0, [2])]
    assert describe([same, [row(1.0, [1])]])[0]["reward/contradictions"] == 1 / 2
    assert "reward/contradictions" not in describe([[row(0.5, [1]), row(0.5, [2])]])[0]


def reward_of(**weights: float) -> RewardConfig:
    functions = [{"use": f"rewards.py:{name}", "weight": weight} for name, weight in weights.items()]
    return RewardConfig.model_validate({"functions": functions})


def test_the_shares_of_the_variance_by_hand() -> None:
    """Weights 2 and −0.5, and once only one part: the rewards are 0.5, −0.5, 2.5 and 2, their mean is 1.125."""
    values = [{"a": 0.0, "b": -1.0}, {"a": 0.0, "b": 1.0}, {"a": 1.0, "b": -1.0}, {"a": 1.0}]
    rows = [row(2 * one["a"] - 0.5 * one.get("b", 0.0), [1], **one) for one in values]
    found, _ = describe([rows], reward_of(a=2.0, b=-0.5))
    variance = (0.625**2 + 1.625**2 + 1.375**2 + 0.875**2) / 4
    assert found["reward/share/a"] == pytest.approx(2 * (1.375 + 0.875) / 4 / variance)
    assert found["reward/share/b"] == pytest.approx(0.5 * (-0.625 + 1.625 + 1.375) / 4 / variance)
    assert found["reward/share/a"] + found["reward/share/b"] == pytest.approx(1)


def test_shares_are_of_several_parts_and_of_a_reward_that_varies() -> None:
    rows = [row(float(a), [1], a=float(a), b=0.0) for a in (0, 1)]
    assert "reward/share/a" not in describe([rows], reward_of(a=1.0))[0]
    assert "reward/share/a" not in describe([rows[:1]], reward_of(a=1.0, b=1.0))[0]
    assert "reward/share/a" not in describe([rows])[0]
    assert describe([rows], reward_of(a=1.0, b=1.0))[0]["reward/share/b"] == 0


def test_parts_have_the_weights_of_the_recipe_under_the_names_of_a_score() -> None:
    functions = [{"use": "a.py:f", "weight": 2.0}, {"use": "b.py:f", "weight": 3.0}]
    reward = RewardConfig.model_validate({"functions": functions, "model": {"path": "m", "weight": 0.5}})
    assert part_weights(reward) == {"f": 2.0, "f_2": 3.0, "model": 0.5}
    assert part_weights(RewardConfig()) == {}
