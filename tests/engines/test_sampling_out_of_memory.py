"""Memory that runs out while sampling: fewer sequences at a time, the same completions, and an end in every case."""

import gc
import logging
import math
import weakref

import pytest
import torch

from tests.engines.test_continuous import prompts, sampler
from tests.small import small_model
from whet.engines.native import cuda
from whet.engines.native.decode import DecodeLoop
from whet.engines.native.native_engine import NativeEngine
from whet.engines.native.slots import Finished, SlotCache, SlotRows
from whet.errors import RunFailed
from whet.models.decoder.joined_weights import JoinedWeights
from whet.models.memory_errors import NoRoomToSample, is_out_of_memory, shortage
from whet.records import Sampling

SAMPLING = Sampling(max_tokens=30)
SLOTS, COUNT = 16, 4  # 5 prompts × 4 completions


def out_of_memory():
    return torch.OutOfMemoryError("pretended")


def instantiation():
    return RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")


def cublas():
    return RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def triton():
    return RuntimeError("Triton Error [CUDA]: out of memory")


def end_of_capture():
    """The capture of a graph ran out of memory, and ending it failed once more."""
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = out_of_memory()
    return error


# Every moment of a round: weights, buffers, KV cache, prefill, first tokens, capture and replay, harvest.
STAGES = [
    (JoinedWeights, "refreshed"),
    (DecodeLoop, "__init__"),
    (SlotRows, "empty"),
    (DecodeLoop, "refresh"),
    (SlotCache, "hold"),
    (DecodeLoop, "read"),
    (DecodeLoop, "admit"),
    (DecodeLoop, "activate"),
    (DecodeLoop, "run"),
    (cuda.CudaSampler, "_harvest"),
]


def plant(monkeypatch, owner, name, fails, error=out_of_memory):
    """`owner.name` raises at each call for whose number, from 1 on, `fails` is true; returns the calls so far."""
    bound = owner.__dict__[name]
    original, calls = getattr(bound, "__func__", bound), []

    def short(*arguments, **named):
        calls.append(name)
        if fails(len(calls)):
            raise error()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, name, classmethod(short) if isinstance(bound, classmethod) else short)
    return calls


@pytest.fixture(scope="module")
def small():
    model, tokenizer = small_model(sharp=4.0)
    return model, tokenizer, sampler(model, tokenizer, SLOTS).sample(prompts(), SAMPLING, count=COUNT)


@pytest.mark.parametrize("failing", [[1], [2], [1, 2, 3], [2, 4]], ids=str)
@pytest.mark.parametrize(("owner", "name"), STAGES)
def test_memory_that_runs_out_at_any_stage_changes_no_token(small, monkeypatch, caplog, owner, name, failing):
    model, tokenizer, expected = small
    told, failing = {}, set(failing)
    finished = Finished(COUNT, lambda prompt, drawn: told.setdefault(prompt, []).append(drawn))
    calls = plant(monkeypatch, owner, name, failing.__contains__)
    one = sampler(model, tokenizer, SLOTS)
    with caplog.at_level(logging.WARNING, "whet"):
        found = one.sample(prompts(), SAMPLING, count=COUNT, finished=finished)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    assert told == {i: [found[COUNT * i : COUNT * (i + 1)]] for i in range(5)}  # each prompt once
    failures = sum(number in failing for number in range(1, len(calls) + 1))
    left = SLOTS >> failures
    said = f"out of memory while sampling: {left} sequences at a time from now on instead of {SLOTS}"
    assert [record.getMessage() for record in caplog.records] == (
        [f"{said} (engine.max_sequences={left})"] * bool(failures)
    )
    assert one.max_slots == left  # and it stays so
    caplog.clear()
    failing.clear()
    assert [c.tokens for c in one.sample(prompts(), SAMPLING, count=COUNT)] == [c.tokens for c in found]
    assert not caplog.records


@pytest.mark.parametrize(("owner", "name"), STAGES)
def test_it_ends_when_one_slot_does_not_suffice(small, monkeypatch, caplog, owner, name):
    model, tokenizer, _ = small
    calls = plant(monkeypatch, owner, name, lambda _: True)
    with pytest.raises(NoRoomToSample, match="pretended"):
        sampler(model, tokenizer, SLOTS).sample(prompts(), SAMPLING, count=COUNT)
    assert len(calls) == 1 + math.log2(SLOTS)  # 16, 8, 4, 2, 1
    assert not caplog.records  # the error says it


def test_memory_that_suffices_for_no_second_sequence(small, monkeypatch):
    """Completions that were finished before are kept, whatever the number of attempts after them."""
    model, tokenizer, expected = small
    original, seen = DecodeLoop.run, []

    def short(self, steps, *, count):
        seen.append(self.slots)
        if self.slots > 1 and seen.count(self.slots) == 2:  # when the shortest completions are finished
            raise out_of_memory()
        original(self, steps, count=count)

    monkeypatch.setattr(DecodeLoop, "run", short)
    found = sampler(model, tokenizer, 13).sample(prompts(), SAMPLING, count=COUNT)
    assert [c.tokens for c in found] == [c.tokens for c in expected]
    assert list(dict.fromkeys(seen)) == [13, 6, 3, 1]


def test_fewer_slots_than_asked_are_halved_from_those_that_were_tried(small, monkeypatch):
    """Memory allowed 5 of 16 by the estimate, so the next attempt is with 2."""
    model, tokenizer, expected = small
    monkeypatch.setattr(cuda.CudaSampler, "_slots_that_fit", lambda *_, **__: 5)
    plant(monkeypatch, DecodeLoop, "__init__", {1}.__contains__)
    one = sampler(model, tokenizer, SLOTS)
    assert [c.tokens for c in one.sample(prompts(), SAMPLING, count=COUNT)] == [c.tokens for c in expected]
    assert one.max_slots == 2


@pytest.mark.parametrize("error", [instantiation, cublas, triton, end_of_capture])
def test_errors_of_other_libraries_that_mean_the_same(small, monkeypatch, error):
    model, tokenizer, expected = small
    plant(monkeypatch, DecodeLoop, "run", {2}.__contains__, error)
    found = sampler(model, tokenizer, SLOTS).sample(prompts(), SAMPLING, count=COUNT)
    assert [c.tokens for c in found] == [c.tokens for c in expected]


def test_another_error_is_not_tried_again(small, monkeypatch):
    model, tokenizer, _ = small
    calls = plant(monkeypatch, DecodeLoop, "run", lambda _: True, lambda: RuntimeError("an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal"):
        sampler(model, tokenizer, SLOTS).sample(prompts(), SAMPLING, count=COUNT)
    assert len(calls) == 1
    failed = RunFailed("another error, of our own")
    failed.__context__ = out_of_memory()
    assert not is_out_of_memory(failed)
    assert not is_out_of_memory(ValueError("CUDA out of memory"))  # no error of a device
    with pytest.raises(ValueError, match="none"):
        shortage(lambda: (_ for _ in ()).throw(ValueError("none")))


def test_after_a_failed_attempt_nothing_of_it_is_held(small, monkeypatch):
    """The next attempt would else be made in what the one before has left."""
    model, tokenizer, _ = small
    original, loops = DecodeLoop.read, []

    def failing(self, texts, slots):
        loops.append(weakref.ref(self))
        if len(loops) <= 2:
            raise out_of_memory()
        gc.collect()
        assert [made() for made in loops[:2]] == [None, None]
        return original(self, texts, slots)

    monkeypatch.setattr(DecodeLoop, "read", failing)
    assert len(sampler(model, tokenizer, 8).sample(prompts(), Sampling(max_tokens=3), count=2)) == 10
    assert len(loops) > 2


class Narrow:
    """A policy whose memory suffices for so many rows of a pass, after the first `free` passes."""

    def __init__(self, monkeypatch, model, *, begin, rows):
        self.attempts = []
        first, then = type(model).begin, type(model).extend

        def beginning(model, tokens, lengths, *, room):
            self.attempts.append(len(tokens))
            if len(tokens) > begin:
                raise out_of_memory()
            return first(model, tokens, lengths, room=room)

        def extending(model, tokens, cache):
            if len(tokens) > rows and len(tokens) < COUNT * self.attempts[-1]:  # when some have ended
                raise out_of_memory()
            return then(model, tokens, cache)

        monkeypatch.setattr(type(model), "begin", beginning)
        monkeypatch.setattr(type(model), "extend", extending)


@pytest.mark.parametrize(
    ("begin", "rows", "attempts"),
    [(5, 99, [5]), (2, 99, [5, 2, 2, 1]), (5, 9, [5, 2, 2, 1]), (1, 99, [5, 2, 1, 1, 1, 1, 1])],
)
def test_models_without_graphs_are_sampled_in_smaller_batches(monkeypatch, caplog, begin, rows, attempts):
    """Models of transformers, top-p and the like; before a pass, or when some sequences have ended."""
    model, tokenizer = small_model(sharp=4.0)
    engine, told = NativeEngine(model, tokenizer), {}
    expected = engine.generate(prompts(), SAMPLING, count=COUNT)
    narrow = Narrow(monkeypatch, model, begin=begin, rows=rows)
    found = engine.generate(prompts(), SAMPLING, count=COUNT, on_group=lambda i, c: told.setdefault(i, []).append(c))
    assert [[c.tokens for c in group] for group in found] == [[c.tokens for c in group] for group in expected]
    assert told == {index: [group] for index, group in enumerate(found)}
    assert narrow.attempts == attempts
    few = 1 if begin == 1 else 2
    said = f"{few * COUNT} sequences at a time from now on instead of 20 (engine.max_sequences={few * COUNT})"
    assert [said in record.getMessage() for record in caplog.records] == [True] * (len(attempts) > 1)
    if len(attempts) > 1:
        assert engine.max_sequences == few * COUNT


def test_batches_end_at_one_prompt(monkeypatch):
    model, tokenizer = small_model(sharp=4.0)
    narrow = Narrow(monkeypatch, model, begin=0, rows=99)
    with pytest.raises(NoRoomToSample):
        NativeEngine(model, tokenizer).generate(prompts(), SAMPLING, count=COUNT)
    assert narrow.attempts == [5, 2, 1]


def test_tokens_that_were_heard_are_not_sampled_again(monkeypatch):
    model, tokenizer = small_model(sharp=4.0)
    narrow = Narrow(monkeypatch, model, begin=2, rows=99)
    with pytest.raises(NoRoomToSample):
        NativeEngine(model, tokenizer, on_token=lambda *_: None).generate(prompts(), SAMPLING, count=COUNT)
    assert narrow.attempts == [5]


def test_completions_that_were_told_of_are_those_that_are_given():
    """On a GPU a batch that begins again may round differently; what was scored must be what is trained."""
    told = []
    finished = Finished(2, lambda prompt, drawn: told.append((prompt, drawn)))
    finished.add(0, {2: "c", 3: "d", 0: "a"})
    finished.add(0, {0: "A", 1: "B", 2: "C", 3: "D"})
    assert told == [(1, ["c", "d"]), (0, ["A", "B"])]
    assert finished.as_told(["A", "B", "C", "D", "E", "F"]) == ["A", "B", "c", "d", "E", "F"]
