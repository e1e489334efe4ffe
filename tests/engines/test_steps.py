"""The steps of a decode pass by themselves, Triton kernels and plain ones, against formulas written out here."""

import math

import pytest
import torch

from tests.engines import decode_plain as plain
from whet.engines.native.slots import SlotCache, SlotRows, Turn, Where
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.load import new_model
from whet.streams import uniform

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
KINDS = [
    pytest.param("plain", torch.float32, id="plain"),
    pytest.param("kernels", torch.float32, id="kernels, fp32", marks=GPU),
    pytest.param("kernels", torch.bfloat16, id="kernels, bf16", marks=GPU),
]


def operations(kind):
    if kind == "plain":
        return plain, torch.device("cpu")
    from whet.engines.native import decode_kernels as kernels

    return kernels, torch.device("cuda")


def near(found, expected, dtype):
    return torch.allclose(found.float().cpu(), expected.float().cpu(), atol=1e-4 if dtype is torch.float32 else 3e-2)


def config(heads, kv_heads, dim, layers=2) -> DecoderConfig:
    return new_model(
        "llama", vocab_size=11, layers=layers, heads=heads, kv_heads=kv_heads, width=heads * dim, context=64, seed=0
    ).config


def normal(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("width", [1, 96, 576, 1000])
@pytest.mark.parametrize("has_added", [False, True])
def test_a_norm_after_an_addition(kind, dtype, width, has_added):
    ops, device = operations(kind)
    residual, weight = normal(7, width, device=device), normal(width, device=device, seed=1)
    added = normal(7, width, dtype=dtype, device=device, seed=2) if has_added else None
    total = residual + (added.float() if has_added else 0)
    out = ops.add_norm(residual, added, weight, 1e-5, dtype)
    assert out.dtype is dtype
    assert torch.allclose(residual, total, atol=1e-6)
    assert near(out, total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight, dtype)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("width", [3, 1024, 1536])
def test_a_gate(kind, dtype, width):
    ops, device = operations(kind)
    both = normal(5, 2 * width, dtype=dtype, device=device)
    out = ops.gate(both)
    first, second = both.float().chunk(2, dim=-1)
    assert near(out, first / (1 + (-first).exp()) * second, dtype)


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (9, 3, 64), (4, 1, 128)])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("by_slot", [False, True])
def test_queries_and_keys_turn_and_keys_and_values_are_kept(kind, dtype, heads, kv_heads, dim, has_norms, by_slot):
    ops, device = operations(kind)
    cache = SlotCache(config(heads, kv_heads, dim), slots=6, capacity=20, dtype=dtype, device=device)
    cache.hold()
    for held in (*cache.layer(0), *cache.layer(1)):
        held.zero_()
    slots, positions = torch.tensor([4, 0, 5], dtype=torch.int32), torch.tensor([3, 19, 0], dtype=torch.int32)
    qkv = normal(3, (heads + 2 * kv_heads) * dim, dtype=dtype, device=device)
    norms = (normal(dim, device=device, seed=3), normal(dim, device=device, seed=4)) if has_norms else None
    angles = torch.arange(20)[:, None] * 0.1 ** torch.arange(dim // 2)
    table = (angles.cos().to(device), angles.sin().to(device))
    dense = None if by_slot else tuple(torch.empty(3, kv_heads, dim, dtype=dtype, device=device) for _ in range(2))
    told = torch.zeros(7, dtype=torch.int32)
    told[slots.long()] = positions
    where = Where(slots=slots.to(device), positions=(told if by_slot else positions).to(device), by_slot=by_slot)
    queries = ops.place(qkv, Turn(angles=table, norms=norms, eps=1e-6), where, dense, cache, 1)

    q, k, v = qkv.cpu().float().view(3, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = (
            x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.cpu() for x, w in zip((q, k), norms, strict=True)
        )

    def turned(x):
        """As complex numbers: pair i is (x[i], x[i + dim / 2])."""
        pairs = torch.complex(x[..., : dim // 2], x[..., dim // 2 :])
        spun = pairs * torch.polar(torch.ones(3, 1, dim // 2), angles[positions.long()][:, None])
        return torch.cat([spun.real, spun.imag], dim=-1)

    assert near(queries, turned(q), dtype)
    keys, values = (held.cpu() for held in cache.layer(1))
    for row, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
        assert near(keys[slot, :, position], turned(k)[row], dtype)
        assert near(values[slot, :, position], v[row], dtype)
        keys[slot, :, position] = values[slot, :, position] = 0
    assert not keys.any()
    assert not values.any()
    assert not any(held.any() for held in cache.layer(0))
    if dense is not None:
        assert near(dense[0], turned(k), dtype)
        assert near(dense[1], v, dtype)


CONTEXTS = [1, 2, 63, 64, 65, 130, 255, 256]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("group", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(("kv_heads", "dim"), [(1, 16), (3, 64), (2, 128)])
@pytest.mark.parametrize("splits", [1, 4])
def test_attention_over_a_shared_beginning_and_a_slot_of_its_own(kind, dtype, group, kv_heads, dim, splits):
    """Contexts from 1 to the capacity; what lies beyond them, in other slots and layers, is junk."""
    ops, device = operations(kind)
    heads, count = group * kv_heads, len(CONTEXTS)
    cache = SlotCache(config(heads, kv_heads, dim), slots=count + 2, capacity=256, dtype=dtype, device=device)
    cache.hold()
    keys, values = (normal(*cache.shape[1:], dtype=dtype, device=device, seed=seed) for seed in (1, 2))
    for layer in range(2):
        for held, right in zip(cache.layer(layer), (keys, values), strict=True):
            held.copy_(right if layer == 1 else torch.full_like(right, 7e3))
    rows = SlotRows.empty(count + 3, 4, device)
    slots = torch.tensor([(3 * index + 1) % count for index in range(count)], dtype=torch.int32)
    expected = torch.empty(count, heads, dim)
    queries = normal(count, heads, dim, dtype=dtype, device=device, seed=5)
    for row, (slot, length) in enumerate(zip(slots.tolist(), CONTEXTS, strict=True)):
        shared = [0, length // 2, length - 1][row % 3]
        rows.positions[slot], rows.shared[slot], rows.prefixes[slot] = length - 1, shared, count if shared else slot
        for held, junk in zip(cache.layer(1), (9e3, -9e3), strict=True):
            held[slot, :, length:] = junk
            held[slot, :, :shared] = junk
        seen = [torch.cat([x[count, :, :shared], x[slot, :, shared:length]], dim=1).float() for x in (keys, values)]
        for head in range(heads):
            scores = seen[0][head // group] @ queries[row, head].float() / math.sqrt(dim)
            expected[row, head] = (scores.softmax(0) @ seen[1][head // group]).cpu()
    out = ops.attend(queries, cache, 1, slots.to(device), rows, splits)
    assert near(out, expected, dtype)


@pytest.mark.parametrize(("kind", "dtype"), KINDS[:2])
@pytest.mark.parametrize("vocab", [2, 300, 4096, 49_153])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draw(kind, dtype, vocab, temperature):
    """By inverting the sum of probabilities at the slot's own random number."""
    ops, device = operations(kind)
    logits = (normal(6, vocab) * 3).to(device)
    rows = SlotRows.empty(9, 3, device)
    slots = torch.tensor([7, 0, 2, 8, 1, 3], dtype=torch.int32, device=device)
    rows.streams.copy_(torch.arange(9) * 7919 + 5)
    rows.steps.copy_(torch.tensor([0, 1, 2, 0, 0, 0, 0, 1, 2]))
    rows.positions.copy_(torch.arange(9))
    rows.ended.fill_(3)
    scaled = logits.double().cpu() / (temperature or 1.0)
    probabilities = scaled.softmax(-1)
    at = slots.cpu().long()
    wanted = uniform(rows.streams.cpu()[at], rows.steps.cpu()[at])
    expected = torch.tensor([int((row.cumsum(0) <= x).sum()) for row, x in zip(probabilities, wanted, strict=True)])
    if temperature == 0:
        expected = logits.argmax(-1).cpu()
    stop = expected[:2].tolist()
    coldness = torch.full((1,), 1 / (temperature or 1.0), device=device)
    ops.draw(logits, slots, rows, torch.tensor(stop, device=device), coldness, greedy=temperature == 0, capacity=8)
    assert rows.tokens.cpu()[at].tolist() == expected.tolist()
    steps = [0, 1, 2, 0, 0, 0, 0, 1, 2]
    for row, slot in enumerate(at.tolist()):
        token = int(expected[row])
        assert int(rows.out_tokens[slot, steps[slot]]) == token
        logprob = 0.0 if temperature == 0 else float(probabilities[row, token].log())
        assert float(rows.logprobs[slot, steps[slot]]) == pytest.approx(logprob, abs=2e-4)
        assert int(rows.steps[slot]) == steps[slot] + 1
        assert int(rows.ended[slot]) == (steps[slot] + 1 if token in stop else 3)
        assert int(rows.positions[slot]) == min(slot + 1, 7)
    untouched = [slot for slot in range(9) if slot not in at.tolist()]
    assert rows.steps[untouched].tolist() == [steps[slot] for slot in untouched]
    assert not rows.out_tokens[untouched].any()
