"""Examples to prompts to judged rollouts."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.small import small_model
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.records import Completion, Example, Prompt, Sampling, Score
from whet.rollout import draw, grade, sample, tokenize_prompts
from whet.tasks.grading.graders import InOneCall
from whet.tasks.procedural import Sorting

EXAMPLES = [Example(id=name, prompt=f"{name}>", answer=name) for name in ("ab", "c", "ab", "def")]
SAMPLING = Sampling(max_tokens=4)


class Lengths(InOneCall):
    """Rewards a text by its length, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Any = None) -> list[Score]:
        self.asked += [(example.id, text) for example, text in zip(examples, texts, strict=True)]
        return [Score(reward=float(len(text)), parts={"length": float(len(text))}) for text in texts]

    def close(self) -> None:
        """Owns nothing."""


def test_a_draw_is_complete_or_an_error() -> None:
    class Few(Sorting):
        def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
            return super().draw(count, seed=seed)[:2]

    assert len(draw(Sorting(), 5, seed=(1,))) == 5
    with pytest.raises(RunFailed, match="task sorting drew 2 examples instead of 5"):
        draw(Few(), 5, seed=(1,))


def test_a_stream_is_named_by_the_example_and_not_by_its_place() -> None:
    _, tokenizer = small_model()
    forward = tokenize_prompts(EXAMPLES, tokenizer, stream=(3, 7))
    backward = tokenize_prompts(EXAMPLES[::-1], tokenizer, stream=(3, 7))
    assert {prompt.stream for prompt in forward} == {prompt.stream for prompt in backward}
    assert forward[1].stream == backward[2].stream
    assert len({prompt.stream for prompt in forward}) == 4  # the repeated example draws anew
    assert not {p.stream for p in forward} & {p.stream for p in tokenize_prompts(EXAMPLES, tokenizer, stream=(3, 8))}
    assert [tokenizer.decode(prompt.tokens) for prompt in forward] == ["ab>", "c>", "ab>", "def>"]


def test_a_text_does_not_depend_on_its_company() -> None:
    policy, tokenizer = small_model()
    engine = NativeEngine(policy, tokenizer)
    prompts = tokenize_prompts(EXAMPLES, tokenizer, stream=(3, 7))
    together = sample(engine, prompts, SAMPLING, group=3)
    alone = sample(engine, [prompts[3]], SAMPLING, group=3)
    assert [c.tokens for c in together[3][1]] == [c.tokens for c in alone[0][1]]
    assert len({c.tokens for _, completions in together for c in completions}) > 4


def test_the_likeliest_completion_stands_behind_the_group() -> None:
    policy, tokenizer = small_model()
    engine = NativeEngine(policy, tokenizer)
    prompts = tokenize_prompts(EXAMPLES, tokenizer, stream=(3, 7))
    plain = sample(engine, prompts, SAMPLING, group=3)
    more = sample(engine, prompts, SAMPLING, group=3, greedy=True)
    assert [c[:3] for _, c in more] == [c for _, c in plain]  # the others are what they would have been without it
    for prompt, completions in more:
        tokens = list(prompt.tokens)
        for token in completions[3].tokens:  # each is the most likely one after what stands before it
            states = policy.hidden(torch.tensor([tokens]), torch.tensor([len(tokens)]))
            assert int(policy.head(states[0, -1]).argmax()) == token
            tokens.append(token)
        assert completions[3].logprobs == (0.0,) * len(completions[3].tokens)


def completion(text: str) -> Completion:
    return Completion(
        tokens=tuple(map(ord, text)), logprobs=tuple(-0.1 * i for i, _ in enumerate(text)), text=text, finish="stop"
    )


def test_scores_find_their_rollouts() -> None:
    grader = Lengths()
    prompts = [Prompt(tokens=(1, 2), stream=(i,)) for i in range(2)]
    samples = list(
        zip(prompts, [[completion("x"), completion("yy")], [completion("zzz"), completion("")]], strict=True)
    )
    groups = grade(grader, EXAMPLES[:2], samples, version=6)
    assert [[r.score.reward for r in group] for group in groups] == [[1.0, 2.0], [3.0, 0.0]]
    assert [[r.example.id for r in group] for group in groups] == [["ab", "ab"], ["c", "c"]]
    assert grader.asked == [("ab", "x"), ("ab", "yy"), ("c", "zzz"), ("c", "")]  # one call for all of them
    rollout: Any = groups[1][0]
    assert rollout.tokens == (1, 2, *map(ord, "zzz"))
    assert rollout.mask == (False, False, True, True, True)
    assert rollout.logprobs == pytest.approx((0.0, 0.0, 0.0, -0.1, -0.2))
    assert (rollout.text, rollout.finish, rollout.version) == ("zzz", "stop", 6)
