"""Continuous batching on a CPU, in plain torch: the same tokens as the plain path, whatever the number of slots."""

import pytest
import torch

from tests.engines import decode_plain
from tests.small import small_model
from whet.engines.engine_protocol import token_limit
from whet.engines.native.cuda import CudaSampler
from whet.engines.native.decode import DecodeLoop
from whet.engines.native.native_engine import NativeEngine
from whet.engines.native.slots import Finished
from whet.records import Prompt, Sampling

LENGTHS = (1, 3, 12, 7, 5)


def prompts(**limits):
    return [
        Prompt(
            tokens=tuple(torch.randint(3, 20, (length,), generator=torch.Generator().manual_seed(length)).tolist()),
            stream=(1, length),
            limit=limits.get(f"of_{length}"),
        )
        for length in LENGTHS
    ]


def sampler(model, tokenizer, slots):
    return CudaSampler(model, tokenizer.stops, max_slots=slots, dtype=torch.float32, ops=decode_plain)


@pytest.mark.parametrize(
    ("family", "temperature", "slots"),
    [
        *(("llama", 0.7, slots) for slots in (1, 3, 8, 64)),
        *((family, temperature, 8) for family in ("qwen2", "qwen3") for temperature in (0.0, 1.0, 0.7)),
        *(("llama", temperature, 3) for temperature in (0.0, 1.0)),
    ],
)
def test_every_number_of_slots_gives_what_the_plain_path_gives(family, temperature, slots):
    model, tokenizer = small_model(family, sharp=4.0)
    sampling = Sampling(max_tokens=30, temperature=temperature)
    asked = prompts(of_3=4, of_7=50)
    expected = [c for group in NativeEngine(model, tokenizer).generate(asked, sampling, count=4) for c in group]
    drawn = sampler(model, tokenizer, slots).sample(asked, sampling, count=4)
    assert [tuple(one.tokens) for one in drawn] == [c.tokens for c in expected]
    said = torch.tensor([x for one in drawn for x in one.logprobs])
    assert torch.allclose(said, torch.tensor([x for c in expected for x in c.logprobs]), atol=1e-5)
    lengths = {len(one.tokens) for one in drawn}
    assert max(len(one.tokens) for one in drawn[4:8]) <= 4
    assert len(lengths) > 2  # sequences ended at different times, so slots were used again


def test_new_weights_are_sampled_with_and_room_grows():
    model, tokenizer = small_model(sharp=4.0)
    one = sampler(model, tokenizer, 8)
    short = one.sample(prompts(), Sampling(max_tokens=5), count=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    long = one.sample(prompts(), Sampling(max_tokens=40), count=2)
    expected = NativeEngine(model, tokenizer).generate(prompts(), Sampling(max_tokens=40), count=2)
    assert [tuple(c.tokens) for c in long] == [c.tokens for group in expected for c in group]
    assert [c.tokens for c in short] != [c.tokens[:5] for c in long]


def test_trainer_and_sampler_share_one_copy_of_the_weights():
    model, tokenizer = small_model(sharp=4.0)
    one = sampler(model, tokenizer, 8)
    one.sample(prompts(), Sampling(max_tokens=5), count=2)
    trainers = model.model.joined.refreshed(list(model.model.layers), torch.float32)
    assert [b.qkv.data_ptr() for b in one._loop.weights.blocks] == [b.qkv.data_ptr() for b in trainers]


def test_graphs_are_dropped_only_when_a_weight_has_moved(monkeypatch):
    model, tokenizer = small_model(sharp=4.0)
    one, dropped, original = sampler(model, tokenizer, 8), [], DecodeLoop._drop_graphs
    one.sample(prompts(), Sampling(max_tokens=5), count=2)
    monkeypatch.setattr(DecodeLoop, "_drop_graphs", lambda loop: (dropped.append(1), original(loop)))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.3)  # in place, as optimizers do
    one.sample(prompts(), Sampling(max_tokens=5), count=2)
    assert not dropped
    for change in (model.model.joined.clear, lambda: setattr(model.model.norm.weight, "data", torch.ones(32) * 2)):
        held, dropped = one._loop.weights, []
        change()
        moved = one.sample(prompts(), Sampling(max_tokens=5), count=2)
        assert dropped
        assert [c.tokens for c in moved] == [
            c.tokens for c in sampler(model, tokenizer, 8).sample(prompts(), Sampling(max_tokens=5), count=2)
        ]
        del held  # kept until here, so that no new tensor takes its address


def test_each_prompt_is_read_once_and_its_cache_is_shared(monkeypatch):
    model, tokenizer = small_model(sharp=4.0)
    read, admitted = [], []
    original_read, original_admit = DecodeLoop.read, DecodeLoop.admit

    def reading(self, texts, slots):
        read.extend((len(text), slot) for text, slot in zip(texts, slots, strict=True))
        return original_read(self, texts, slots)

    def admitting(self, slots, states, lengths, streams, limits, prefixes):
        admitted.extend(zip(slots.tolist(), prefixes.tolist(), strict=True))
        original_admit(self, slots, states, lengths, streams, limits, prefixes)

    monkeypatch.setattr(DecodeLoop, "read", reading)
    monkeypatch.setattr(DecodeLoop, "admit", admitting)
    sampler(model, tokenizer, 64).sample(prompts(), Sampling(max_tokens=6), count=4)
    assert sorted(length for length, _ in read) == sorted(LENGTHS)
    leaders = {slot for _, slot in read}
    assert {prefix for _, prefix in admitted} == leaders
    assert len(admitted) == 20


def test_the_cache_is_given_back_between_calls():
    model, tokenizer = small_model()
    one = sampler(model, tokenizer, 8)
    one.sample(prompts(), Sampling(max_tokens=5), count=2)
    assert one._loop.cache.keys is one._loop.cache.values is None
    with pytest.raises(AssertionError):
        one._loop.cache.layer(0)


@pytest.mark.parametrize(
    ("length", "limit", "expected"), [(10, None, 20), (10, 7, 7), (10, 90, 20), (95, None, 5), (95, 3, 3)]
)
def test_limits(length, limit, expected):
    prompt = Prompt(tokens=(1,) * length, stream=(0,), limit=limit)
    assert token_limit(prompt, Sampling(max_tokens=20), 100) == expected


def test_nothing_asked_nothing_given():
    model, tokenizer = small_model()
    assert sampler(model, tokenizer, 4).sample([], Sampling(max_tokens=5), count=2) == []


def test_each_prompt_is_told_of_once_with_its_completions():
    model, tokenizer = small_model("llama")
    told = {}
    finished = Finished(3, lambda prompt, drawn: told.setdefault(prompt, []).append(drawn))
    asked = prompts(of_3=9, of_1=20)
    drawn = sampler(model, tokenizer, 6).sample(asked, Sampling(max_tokens=20), count=3, finished=finished)
    assert told == {i: [drawn[3 * i : 3 * i + 3]] for i in range(len(asked))}
