"""Orders and answers are the same on the other side, bit for bit, and damage is noticed."""

import json
import struct

import pytest
import torch

from whet.errors import RunFailed
from whet.records import Completion, Prompt, Sampling
from whet.train.rollout_pool.orders import Order, from_bytes, pack_samples, to_bytes, unpack_samples
from whet.train.rollout_pool.schedule import Part

PROMPTS = (Prompt(tokens=(1, 2, 3), stream=(5, 1, 2**62)), Prompt(tokens=(4,), stream=(5, 1, 9), limit=3))


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def completion(text, *logprobs, finish="stop"):
    tokens = tuple(range(len(logprobs)))
    return Completion(tokens=tokens, logprobs=tuple(map(fp32, logprobs)), text=text, finish=finish)


SAMPLES = [
    (PROMPTS[0], [completion("a", -0.1, -1 / 3), completion("\ud800\n", -2e-38, finish="length")]),
    (PROMPTS[1], [completion("", -7.5), completion("ünï", 0.0, -1e-45, -3.3)]),
]


def test_an_order_is_the_same_on_the_other_side():
    order = Order(
        part=Part(7, 1, 2),
        version=3,
        weights="/somewhere/weights-000003.safetensors",
        seal="ab",
        prompts=PROMPTS,
        sampling=Sampling(max_tokens=9, temperature=0.1 + 0.2, stop=("\n", "ß"), min_tokens=2, endings=(1, 5)),
        group=4,
        greedy=True,
    )
    assert Order.unpacked(json.loads(json.dumps({**order.packed(), "request": 4}))) == order


def test_an_answer_is_the_same_on_the_other_side():
    assert unpack_samples(from_bytes(to_bytes(pack_samples(SAMPLES))), PROMPTS, 2) == SAMPLES


def test_an_answer_of_another_number_of_completions_is_refused():
    packed = pack_samples(SAMPLES)
    with pytest.raises(RunFailed, match="returned 4 completions of 2 prompts × 3"):
        unpack_samples(packed, PROMPTS, 3)
    with pytest.raises(RunFailed, match="completions"):
        unpack_samples({**packed, "tokens": packed["tokens"][:-1]}, PROMPTS, 2)


def test_a_truncated_answer_is_damaged():
    with pytest.raises(RunFailed, match="the answer of a rollout worker is damaged"):
        from_bytes(to_bytes(pack_samples(SAMPLES))[:-3])
    assert torch.equal(from_bytes(to_bytes({"a": torch.ones(2)}))["a"], torch.ones(2))
