"""Rollouts as rows for the disk and as metrics, computed by hand."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.small import small_model
from whet.distributed.world import World
from whet.records import Example, Rollout, Score
from whet.rollout import spelled
from whet.train.online.sampling import describe, rollout_rows

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
    }
    assert (second["advantage"], second["trained"]) == (-1.0, True)
    assert "advantages" not in second  # one number says it all
    assert [(row["trained"], row["advantage"], row["pieces"]) for row in dropped] == [
        (False, 0.0, ["e"]),
        (False, 0.0, ["f", "f"]),
    ]


def test_metrics_count_every_rollout_also_of_dropped_groups() -> None:
    metrics, tokens = describe(rollout_rows(drawn(), batch(), ALONE))
    assert tokens == 3 + 1 + 1 + 2
    assert metrics == pytest.approx(
        {
            "reward/mean": 1.25,
            "reward/std": ((0.0625 + 1.5625 + 2 * 0.5625) / 4) ** 0.5,
            "parts/exact": 0.625,
            "length/mean": 7 / 4,
            "length/max": 3.0,
            "truncated": 0.25,
            "groups/zero_variance": 0.5,
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
