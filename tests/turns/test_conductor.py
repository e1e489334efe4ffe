"""Conversations in rounds: which tokens, masks, streams and limits they have, and how they end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.models.chats import CHAT, spelled
from tests.small import small_model
from tests.turns.played import Puppet
from tests.turns.scripted import Script, Scripted
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed, UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Completion, Example, Message, Sampling
from whet.rollout import sample, tokenize_prompts
from whet.tasks.stepping.environment_pool import Limits, environments_of
from whet.turns.conductor import Conductor

TOKENIZER = character_tokenizer("0123456789+=>abcdefgh")
SAMPLING = Sampling(max_tokens=20)


def conductor(
    task: Any, tokenizer: Any = TOKENIZER, *, max_turns: int | None = None, context: int | None = None
) -> Any:
    environments = environments_of(task, Limits())
    assert environments is not None
    return Conductor(environments=environments, tokenizer=tokenizer, max_turns=max_turns, context=context)


def talk(
    task: Any, says: Sequence[str], tokenizer: Any = TOKENIZER, sampling: Sampling = SAMPLING, **limits: int
) -> tuple[Completion, Puppet]:
    """One conversation, and the engine that spoke in it."""
    engine = Puppet(tokenizer, says)
    examples = task.draw(1, seed=(1,))
    prompts = tokenize_prompts(examples, tokenizer, stream=(7,))
    ((_, (completion,)),) = conductor(task, tokenizer, **limits).play(examples, engine, prompts, sampling, 1)
    return completion, engine


def written(ids: Sequence[int]) -> str:
    return "".join("." if token == TOKENIZER.eos else TOKENIZER.decode([token]) for token in ids)


def test_a_conversation_is_what_was_sampled_with_the_observations_between() -> None:
    completion, engine = talk(Scripted(), ["ab", "c", "d"])
    assert written(completion.tokens) == "ab.+1c.+2d."  # the last observation is not followed by a turn
    assert completion.mask == (True,) * 3 + (False,) * 2 + (True,) * 2 + (False,) * 2 + (True,) * 2
    assert completion.logprobs == (-0.5, -1.5, -2.5, 0.0, 0.0, -0.5, -1.5, 0.0, 0.0, -0.5, -1.5)
    assert [(t.tokens, t.text, t.reward, t.observation, t.observed) for t in completion.turns] == [
        (3, "ab", 0.25, "+1", 2),
        (2, "c", 0.0, "+2", 2),
        (2, "d", 0.5, "=3", 0),
    ]
    assert (completion.text, completion.finish, completion.sampled_tokens) == ("d", "stop", 7)
    assert [written(prompt.tokens) for (prompt,) in engine.rounds] == ["0>", "0>ab.+1", "0>ab.+1c.+2"]


def test_every_turn_has_a_stream_of_its_own() -> None:
    _, engine = talk(Scripted(), ["ab", "c", "d"])
    first, *later = [prompt.stream for (prompt,) in engine.rounds]
    assert later == [(*first, 0, 1), (*first, 0, 2)]


def test_an_observation_begins_the_prompt() -> None:
    completion, engine = talk(Scripted(opening="=0"), ["ab", "c", "d"])
    assert written(engine.rounds[0][0].tokens) == "0>=0"
    assert written(completion.tokens) == "ab.+1c.+2d."


def test_the_tokens_of_all_turns_together_are_limited() -> None:
    completion, engine = talk(Scripted(), ["ab", "cdefgh", "d"], sampling=Sampling(max_tokens=7))
    assert [prompt.limit for (prompt,) in engine.rounds] == [None, 4]
    assert written(completion.tokens) == "ab.+1cdef"
    assert (completion.finish, len(completion.turns), completion.turns[-1].observation) == ("length", 2, "")


def test_used_up_tokens_leave_no_observation_behind() -> None:
    completion, _ = talk(Scripted(), ["ab"], sampling=Sampling(max_tokens=3))
    assert written(completion.tokens) == "ab."
    assert completion.finish == "length"
    assert completion.turns[0].reward == 0.25  # the turn was whole: its environment heard it


def test_turns_are_limited() -> None:
    completion, _ = talk(Scripted(), ["ab", "c"], max_turns=2)
    assert written(completion.tokens) == "ab.+1c."
    assert completion.finish == "length"


def test_the_context_ends_a_conversation_before_an_observation_that_fills_it() -> None:
    """0>ab.+1 are 7 tokens; with another one after them there must be room for one."""
    completion, _ = talk(Scripted(), ["ab", "c", "d"], context=7)
    assert written(completion.tokens) == "ab."
    completion, _ = talk(Scripted(), ["ab", "", "d"], context=8)
    assert written(completion.tokens) == "ab.+1."
    assert completion.finish == "length"


def test_a_huge_observation_is_a_bounded_loss() -> None:
    completion, _ = talk(Scripted(lines=(("+" * 2**18, 0.0), ("", 0.0))), ["ab", "c"], context=64)
    assert (written(completion.tokens), completion.finish, completion.failure) == ("ab.", "length", "")
    completion, _ = talk(Scripted(lines=(("+" * 2**20, 0.0), ("", 0.0))), ["ab", "c"], context=64)
    assert "1,048,576 characters, more than 262,144" in completion.failure
    assert completion.failure.endswith("(turn 1)")
    assert completion.text == ""  # nothing that could be right


def test_chat_observations_are_written_as_the_template_writes_them() -> None:
    task = Scripted(lines=(("bc", 0.0), ("d", 0.0)), chat=True)
    examples = [Example(id="x", prompt=(Message(role="user", content="a"),), answer="")]
    engine = Puppet(CHAT, ["ef", "g"])
    prompts = tokenize_prompts(examples, CHAT, stream=(7,))
    ((prompt, (completion,)),) = conductor(task, CHAT).play(examples, engine, prompts, SAMPLING, 1)
    assert spelled(prompt.tokens + completion.tokens) == (
        "<user>a<eos><assistant>ef<eos><user>bc<eos><assistant>g<eos>"
    )
    assert spelled([t for t, m in zip(completion.tokens, completion.mask, strict=True) if m]) == "ef<eos>g<eos>"


def test_a_conversation_of_one_turn_is_a_plain_completion() -> None:
    policy, tokenizer = small_model()
    task = Scripted(lines=(("=1", 0.0),))
    examples = task.draw(3, seed=(1,))
    prompts = tokenize_prompts(examples, tokenizer, stream=(7,))
    engine = NativeEngine(policy, tokenizer)
    plain = sample(engine, prompts, SAMPLING, 4)
    played = conductor(task, tokenizer).play(examples, engine, prompts, SAMPLING, 4)
    assert [prompt for prompt, _ in played] == prompts
    for (_, some), (_, others) in zip(plain, played, strict=True):
        assert [(c.tokens, c.logprobs, c.text) for c in some] == [(c.tokens, c.logprobs, c.text) for c in others]
        assert {c.mask for c in others} == {(True,) * len(c.tokens) for c in some}


def test_a_conversation_does_not_depend_on_its_company() -> None:
    policy, tokenizer = small_model(context=128)
    task = Scripted()
    examples = task.draw(4, seed=(1,))
    prompts = tokenize_prompts(examples, tokenizer, stream=(7,))
    play = conductor(task, tokenizer, context=128).play
    together = play(examples, NativeEngine(policy, tokenizer), prompts, SAMPLING, 3)
    alone = play(examples[2:3], NativeEngine(policy, tokenizer), prompts[2:3], SAMPLING, 3)
    assert [c.tokens for c in together[2][1]] == [c.tokens for c in alone[0][1]]
    assert len({len(c.turns) for _, group in together for c in group}) > 1  # of different lengths
    assert len({c.tokens for _, group in together for c in group}) > 4


def test_a_group_that_begins_differently_is_refused() -> None:
    class Moody(Scripted):
        def environment(self) -> Script:
            made.append(len(made))
            return Script(self.lines, str(made[-1]))

    made: list[int] = []
    task = Moody()
    examples = task.draw(1, seed=(1,))
    prompts = tokenize_prompts(examples, TOKENIZER, stream=(7,))
    with pytest.raises(RunFailed, match="began example 0 with different observations"):
        conductor(task).play(examples, Puppet(TOKENIZER, ["a"]), prompts, SAMPLING, 2)


def test_an_engine_that_tells_no_ids_cannot_converse() -> None:
    class Server(Puppet):
        def _said(self, text: str, prompt: Any, sampling: Sampling) -> Completion:
            return replace(super()._said(text, prompt, sampling), tokens=(-1, -1))

    task = Scripted()
    examples = task.draw(1, seed=(1,))
    prompts = tokenize_prompts(examples, TOKENIZER, stream=(7,))
    with pytest.raises(UserError, match="does not tell the ids"):
        conductor(task).play(examples, Server(TOKENIZER, ["a"]), prompts, SAMPLING, 1)
