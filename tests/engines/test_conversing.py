"""Conversations in slots: the same tokens as turn by turn from the beginning, whatever the slots, limits and delays."""

import time
from dataclasses import replace

import pytest
import torch

from tests.engines import decode_plain
from tests.small import small_model
from whet.engines.native.conversing_sampler import ConversingSampler
from whet.engines.native.decode import DecodeLoop
from whet.engines.native.native_engine import NativeEngine
from whet.engines.rounds import in_rounds
from whet.records import Prompt, Sampling

LENGTHS = (1, 3, 12, 7, 5)
TOTAL, TURNS = 24, 4  # tokens of a policy in a conversation; turns at most
TEMPERATURE = 0.7


def prompts():
    draw = [torch.randint(3, 20, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in LENGTHS]
    return [Prompt(tokens=tuple(ids), stream=(1, len(ids))) for ids in draw]


class Talks:
    """Answers every turn with ids that depend on its own, and remembers who said what."""

    def __init__(self, asked, count, *, observed=lambda turn: turn, rewrites=False, delay=0.0):
        self.texts = {p * count + s: prompt.tokens for p, prompt in enumerate(asked) for s in range(count)}
        self.streams = {p * count + s: (*prompt.stream, s) for p, prompt in enumerate(asked) for s in range(count)}
        self.turns = {number: [] for number in self.texts}
        self.observed, self.rewrites, self.delay = observed, rewrites, delay
        self.asked_with = []

    def __call__(self, ended):
        time.sleep(self.delay)
        self.asked_with.append(len(ended))
        going = {}
        for number, one in ended.items():
            self.turns[number].append((tuple(one.tokens), tuple(one.logprobs)))
            turn, spent = len(self.turns[number]), sum(len(ids) for ids, _ in self.turns[number])
            if turn == TURNS or spent >= TOTAL or number % 5 == turn:
                continue
            heard = tuple(3 + (sum(one.tokens) + place) % 17 for place in range(self.observed(turn)))
            self.texts[number] += (*one.tokens, *heard)
            if self.rewrites:
                self.texts[number] = (4, *self.texts[number][1:])
            going[number] = Prompt(
                tokens=self.texts[number], stream=(*self.streams[number], turn), limit=min(9, TOTAL - spent)
            )
        return going


def in_slots(model, tokenizer, talks, asked, *, count, slots, overlaps=False, ops=decode_plain, dtype=torch.float32):
    sampler = ConversingSampler(model, tokenizer.stops, max_slots=slots, dtype=dtype, ops=ops)
    sampling = Sampling(max_tokens=TOTAL, temperature=TEMPERATURE)
    limited = [replace(prompt, limit=9) for prompt in asked]
    sampler.converse(limited, sampling, talks, count=count, overlaps=overlaps)
    return sampler


def turn_by_turn(model, tokenizer, talks, asked, *, count):
    limited = [replace(prompt, limit=9) for prompt in asked]
    sampling = Sampling(max_tokens=TOTAL, temperature=TEMPERATURE)
    in_rounds(NativeEngine(model, tokenizer), limited, sampling, talks, count=count)


def same(one, other):
    assert one.turns.keys() == other.turns.keys()
    assert [[ids for ids, _ in turns] for turns in one.turns.values()] == [
        [ids for ids, _ in turns] for turns in other.turns.values()
    ]
    values = [
        torch.tensor([x for turns in talks.turns.values() for _, some in turns for x in some]) for talks in (one, other)
    ]
    assert torch.allclose(*values, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "slots", "overlaps"),
    [
        *(("llama", slots, False) for slots in (1, 3, 8, 64)),
        ("llama", 3, True),
        ("qwen2", 8, True),
        ("qwen3", 8, False),
    ],
)
def test_conversations_in_slots_are_those_of_rounds(family, slots, overlaps):
    model, tokenizer = small_model(family, sharp=4.0)
    fast, plain = Talks(prompts(), 4), Talks(prompts(), 4)
    in_slots(model, tokenizer, fast, prompts(), count=4, slots=slots, overlaps=overlaps)
    turn_by_turn(model, tokenizer, plain, prompts(), count=4)
    same(fast, plain)
    assert {len(turns) for turns in plain.turns.values()} == {1, 2, 3, 4}


def test_only_what_is_new_is_read(monkeypatch):
    model, tokenizer = small_model(sharp=4.0)
    seen = {"read": [], "read_on": []}

    def watched(name, own):
        return lambda loop, texts, *rest: (seen[name].extend(texts), own(loop, texts, *rest))[1]

    for name in seen:
        monkeypatch.setattr(DecodeLoop, name, watched(name, getattr(DecodeLoop, name)))
    talks = Talks(prompts(), 4)
    in_slots(model, tokenizer, talks, prompts(), count=4, slots=64)
    assert [tuple(text) for text in seen["read"]] == [prompt.tokens for prompt in prompts()]  # each prompt once
    later_turns = [turn for turns in talks.turns.values() for turn in range(1, len(turns))]
    sizes = sorted(1 + turn for turn in later_turns)  # the last sampled token, and `turn` ids
    assert sorted(map(len, seen["read_on"])) == sizes


def test_a_conversation_that_outgrows_its_slot_is_read_again():
    model, tokenizer = small_model(sharp=4.0, context=512)

    def observed(turn):
        return 150 if turn == 2 else turn

    fast, plain = Talks(prompts(), 2, observed=observed), Talks(prompts(), 2, observed=observed)
    sampler = in_slots(model, tokenizer, fast, prompts(), count=2, slots=4)
    turn_by_turn(model, tokenizer, plain, prompts(), count=2)
    same(fast, plain)
    assert sampler._observed >= 150  # the next call has room for as much


def test_a_prompt_that_does_not_go_on_from_the_slot_is_read_whole():
    model, tokenizer = small_model(sharp=4.0)
    fast, plain = Talks(prompts(), 2, rewrites=True), Talks(prompts(), 2, rewrites=True)
    in_slots(model, tokenizer, fast, prompts(), count=2, slots=4)
    turn_by_turn(model, tokenizer, plain, prompts(), count=2)
    same(fast, plain)


@pytest.mark.parametrize("overlaps", [False, True])
def test_out_of_memory_goes_on_with_fewer_slots_and_asks_nothing_twice(monkeypatch, overlaps):
    model, tokenizer = small_model(sharp=4.0)
    fast, plain = Talks(prompts(), 4), Talks(prompts(), 4)
    grow, calls = DecodeLoop.run, []

    def run(loop, steps, *, count):
        calls.append(loop.slots)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("planted")
        grow(loop, steps, count=count)

    monkeypatch.setattr(DecodeLoop, "run", run)
    in_slots(model, tokenizer, fast, prompts(), count=4, slots=16, overlaps=overlaps)
    monkeypatch.undo()
    turn_by_turn(model, tokenizer, plain, prompts(), count=4)
    same(fast, plain)
    assert set(calls[:2]) == {16}
    assert max(calls[2:]) == 8


def test_others_are_sampled_while_an_environment_answers_and_the_clock_changes_nothing():
    model, tokenizer = small_model(sharp=4.0)
    slow, quick = Talks(prompts(), 4, delay=0.02), Talks(prompts(), 4)
    for talks in (slow, quick):
        in_slots(model, tokenizer, talks, prompts(), count=4, slots=6, overlaps=True)
    same(slow, quick)
    assert slow.asked_with == quick.asked_with  # the same turns were told together
    assert len(slow.asked_with) > TURNS


def test_what_an_environment_raises_ends_the_call():
    model, tokenizer = small_model(sharp=4.0)

    def raises(ended):
        raise ValueError("broken")

    for overlaps in (False, True):
        with pytest.raises(ValueError, match="broken"):
            in_slots(model, tokenizer, raises, prompts(), count=2, slots=4, overlaps=overlaps)


@pytest.mark.parametrize("keeps", [False, True])
def test_caches_are_kept_only_when_asked_for(monkeypatch, keeps):
    model, tokenizer = small_model(sharp=4.0)
    engine = NativeEngine(model, tokenizer, keeps_conversations=keeps)
    kept, told = [], Talks(prompts(), 2)

    class Sampler:
        def converse(self, *_, **options):
            kept.append(options)

    monkeypatch.setattr(engine, "_fast_sampler", Sampler)
    # CUDA graphs could sample conversations of any length; single answers, which are shorter, take the plain path.
    monkeypatch.setattr(engine, "_is_fast", lambda sampling, longest: longest == model.context)
    engine.converse([replace(one, limit=9) for one in prompts()], Sampling(max_tokens=TOTAL), told, count=2)
    assert kept == ([{"count": 2, "overlaps": False}] if keeps else [])
    assert any(told.turns.values()) is not keeps
