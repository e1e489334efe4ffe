"""Held-out accuracy of a task with environments: the same conversations, graded by their outcomes."""

from typing import Any

import pytest

from tests.tasks.stepping.hostile import Hostile, example
from tests.turns.played import Puppet
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.evaluate.evaluation import evaluate
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Example, Sampling
from whet.tasks.environments.guessing import Guessing

TOKENIZER = character_tokenizer(Guessing().alphabet + ">abcde")


class Bisecting(Puppet):
    """Guesses the middle, by what stands in its prompt."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, [])

    def generate(self, prompts: Any, sampling: Sampling, *, count: int = 1, on_group: Any = None) -> Any:
        found = []
        for prompt in prompts:
            low, high = 1, 7
            guess = 4
            for answer in TOKENIZER.decode(prompt.tokens).partition(":")[2]:
                if answer == "+":
                    low = guess + 1
                elif answer == "-":
                    high = guess - 1
                guess = (low + high) // 2
            found.append([self._said(str(guess), prompt, sampling)] * count)
        return found


def measured(engine: Any, task: Any, **settings: Any) -> Any:
    return evaluate(
        *(engine, TOKENIZER, task),
        examples=40,
        sampling=Sampling(max_tokens=12),
        seed=0,
        world=World.alone(),
        **settings,
    )


def test_a_policy_that_bisects_is_right_everywhere() -> None:
    found = measured(Bisecting(), Guessing(level=1), samples=2, ks=(1, 2))
    assert found.accuracy.mean == 1.0
    assert {k: one.mean for k, one in found.pass_at.items()} == {1: 1.0, 2: 1.0}
    assert found.truncated == 0.0
    for answer in found.answers:
        assert answer.text == answer.answer
        assert answer.tokens == 2 * len(answer.turns)  # the answers of the environment are not the policy's
        assert [turn["observation"] for turn in answer.turns][-1] == "="
        assert answer.row()["turns"] == answer.turns
    assert {len(answer.turns) for answer in found.answers} == {1, 2, 3}


def test_one_that_always_says_the_same_is_right_by_chance() -> None:
    found = measured(Puppet(TOKENIZER, ["4"] * 9), Guessing(level=1))
    right = [answer.answer == "4" for answer in found.answers]
    assert 0 < sum(right) < len(right) / 2
    assert [answer.correct for answer in found.answers] == right


def test_a_failing_environment_is_an_error_where_nothing_tolerates_it() -> None:
    class Failing(Hostile):
        def held_out(self, count: int) -> list[Example]:
            return [example("good", 1), example("raises", 2)]

    with pytest.raises(RunFailed, match=r"KeyError: 'lost' \(turn 3\) \(held-out example raises-2\)"):
        measured(Puppet(TOKENIZER, ["a"] * 6), Failing())
