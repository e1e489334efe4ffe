"""Sliding windows: in rows, in packings and in the cache, and where the fused passes stop being used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from tests.models.hf_models import CASES, TINY, build, oracle_logits
from tests.small import small_model
from whet.engines.engine_protocol import Prompt
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError
from whet.models.decoder import decoder as decoder_module
from whet.models.decoder.decoder import Decoder, fits_fused
from whet.models.decoder.families import FAMILIES, read_shape
from whet.models.layers import layer_attention
from whet.models.layers.attention import causal_attention, recent
from whet.models.layers.decoder_config import has_usual_blocks, is_served, reaches_all
from whet.models.layers.layer_attention import PackedAttention, Scores, Windowed, layer_scores, row_attentions
from whet.models.layers.packing import pack
from whet.models.load import load_model
from whet.models.logprobs import read_tokens
from whet.records import Sampling

WINDOWED = {
    **{case: CASES[case] for case in ("mistral-short-window", "gemma2", "gemma3", "gemma3-scaled-rope")},
    "phi3": ("Phi3", TINY | {"sliding_window": 7, "pad_token_id": 0}),
}
ROW = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(5))
# Two groups: a prompt of 13 tokens with three completions, and one of 3 with two; windows are of 5 to 7.
PROMPTS = torch.tensor([13, 13, 13, 3, 3])
LENGTHS = torch.tensor([22, 15, 14, 20, 6])
GROUPS = torch.tensor([0, 0, 0, 1, 1])
COLUMNS = torch.arange(22)
MASK = (PROMPTS[:, None] <= COLUMNS) & (LENGTHS[:, None] > COLUMNS)
TOKENS = torch.randint(3, 97, (5, 22), generator=torch.Generator().manual_seed(6))
TOKENS[1:3, :13] = TOKENS[0, :13]
TOKENS[4, :3] = TOKENS[3, :3]


@pytest.fixture(params=WINDOWED)
def pair(request, tmp_path):
    """transformers' model and ours."""
    oracle = build(*WINDOWED[request.param])
    oracle.save_pretrained(tmp_path)
    return oracle, load_model(tmp_path)


def windowed(window: int, family: str = "llama") -> Decoder:
    model, _ = small_model(family, context=48)
    return Decoder(replace(model.config, window=window), family=model.family.model_type, seed=3)


def test_logits_beyond_the_window_are_transformers_logits(pair):
    oracle, model = pair
    assert isinstance(model, Decoder)
    assert model.context == 64
    with torch.no_grad():
        found = model(ROW[None], torch.tensor([60]))[0]
        full = Decoder(replace(model.config, window=None), family=model.family.model_type, seed=None)
        full.load_state_dict(model.state_dict(), assign=True)
        unseen = full(ROW[None], torch.tensor([60]))[0]
    expected = oracle_logits(oracle, ROW)
    assert (found - expected).abs().max() < 1e-5
    assert (unseen - expected).abs().max() > 0.05  # the window hides something


def test_branches_see_their_roots_through_the_window(pair):
    _, model = pair
    with torch.no_grad():
        for groups in (None, GROUPS):
            packing = pack(TOKENS, MASK, groups)
            packed = model.hidden_packed(packing)
            for row, length in enumerate(LENGTHS.tolist()):
                alone = model.hidden(TOKENS[row : row + 1, :length], torch.tensor([length]))[0]
                assert (packed[packing.places[row, : length - 1]] - alone[: length - 1]).abs().max() < 1e-5


def test_packing_changes_no_gradient(pair):
    _, model = pair
    gradients = []
    for packing in (None, pack(TOKENS, MASK, GROUPS)):
        model.zero_grad()
        reading = read_tokens(model, TOKENS, LENGTHS, MASK, Sampling(max_tokens=1), packing=packing)
        (reading.logprobs * torch.arange(110).view(5, 22)).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 1e-5


@torch.no_grad()
def test_cached_tokens_see_what_a_full_pass_sees(pair):
    _, model = pair
    rows = [TOKENS[row, :length].tolist() for row, length in enumerate(PROMPTS.tolist())]
    states, cache = model.begin(TOKENS[:, :13], PROMPTS, room=30)
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        for row, state in zip(rows, states, strict=True):
            alone = model.hidden(torch.tensor([row]), torch.tensor([len(row)]))[0, -1]
            assert (state - alone).abs().max() < 1e-5
        new = torch.randint(0, 97, (len(rows),), generator=generator)
        states = model.extend(new, cache)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)


def test_the_window_of_a_config_that_states_none():
    """As in transformers: an absent key is Mistral's 4096, null is no window."""
    hf = transformers.MistralConfig(**TINY).to_dict()
    for window, read in ((None, None), (7, 7)):
        assert read_shape(FAMILIES["mistral"], hf | {"sliding_window": window}).window == read
    del hf["sliding_window"]
    assert read_shape(FAMILIES["mistral"], hf).window == transformers.MistralConfig().sliding_window == 4096


def test_a_window_by_hand():
    assert recent(4, 2).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert recent(3, None).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert recent(3, 1).int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_keys_of_branches_by_hand():
    """Root of 4 tokens (0–3), branches of 2 (4, 5) and none; a window of 3 reaches two tokens back."""
    tokens, mask = torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 7, dtype=torch.bool)
    mask[0, 4:7], mask[1, 4:5] = True, True
    at = Windowed.of(pack(tokens, mask, torch.tensor([0, 0])), torch.device("cpu"), 3)
    assert at.seen.tolist() == [0, 1, 2, 3, 2, 3, 4, 5]
    assert at.places[0].tolist() == [0, 4, 6, 6]
    assert at.places[1].tolist() == [0, 4, 8, 8]
    assert at.places[2:] == (4, 4)


def reference_flash(q, k, v, places, *, causal, window):
    """What the flash kernels compute of one sequence after the other; the last query stands at the last key."""
    assert not causal
    ends, key_ends, longest, longest_keys = places
    pieces = []
    for i in range(len(ends) - 1):
        (a, b), (c, d) = ((int(x[i]), int(x[i + 1])) for x in (ends, key_ends))
        assert b - a <= longest
        assert d - c <= longest_keys
        distance = torch.arange(d - c - (b - a), d - c)[:, None] - torch.arange(d - c)
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) / q.shape[-1] ** 0.5
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        pieces.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[c:d]))
    return torch.cat(pieces), torch.empty(0)


def reference_flash_back(grad, q, k, v, out, lse, places, *, causal, window):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        again, _ = reference_flash(*leaves, places, causal=causal, window=window)
    assert torch.equal(again, out)
    return torch.autograd.grad(again, leaves, grad)


@pytest.mark.parametrize("window", [1, 3, 6, 14, 40])
def test_the_way_of_the_flash_kernels_is_that_of_masks(window, monkeypatch):
    """What CUDA does with its kernels, here with the same arithmetic in plain torch."""
    packing = pack(TOKENS, MASK, GROUPS)
    sizes = [(1, 4, len(packing.tokens), 8)] * 4
    q, k, v, pull = (torch.randn(size, generator=torch.Generator().manual_seed(i)) for i, size in enumerate(sizes))

    def attended():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = PackedAttention(packing, Scores(window=window))(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, pull)

    expected = attended()
    monkeypatch.setattr(layer_attention, "_fits_flash", lambda q, v: True)
    monkeypatch.setattr(layer_attention, "flash_forward", reference_flash)
    monkeypatch.setattr(layer_attention, "flash_backward", reference_flash_back)
    monkeypatch.setattr(layer_attention, "padded_attention", None)
    for one, two in zip(attended(), expected, strict=True):
        assert (one - two).abs().max() < 1e-5


@torch.no_grad()
def test_a_layer_sees_its_window_and_no_further():
    model = windowed(4)
    trunk, changed = model.model, ROW[:12] % 20
    changed = torch.stack([changed, changed])
    changed[1, 0] += 1
    attends = row_attentions(model.config, torch.tensor([12, 12]), 12)
    block = trunk.layers[0]
    out = block(trunk.embed_tokens(changed), trunk._rotations(torch.arange(12))[0], attends[0])
    moved = (out[0] != out[1]).any(dim=-1)
    assert moved.tolist() == [True] * 4 + [False] * 8


def test_a_window_as_long_as_the_sequences_is_none():
    config = replace(windowed(8).config, full_layers=(1,))
    assert layer_scores(config, 8) == [Scores()] * config.layers
    assert [scores.window for scores in layer_scores(config, 9)][:2] == [8, None]
    assert row_attentions(config, torch.tensor([8]), 8) == [causal_attention] * config.layers


def test_the_fused_pass_reads_sequences_up_to_the_window(monkeypatch):
    model, called = windowed(14), []
    fused = decoder_module.fused_trunk
    monkeypatch.setattr(decoder_module, "fused_trunk", lambda *a, **k: called.append(1) or fused(*a, **k))
    assert fits_fused(model.model)
    tokens = TOKENS % 20
    for longest, times in ((15, 1), (16, 1)):  # the last token predicts nothing and is not packed
        mask = MASK & (longest > COLUMNS)
        packing = pack(tokens, mask, GROUPS)
        assert packing.longest == longest - 1
        with torch.no_grad():
            packed = model.hidden_packed(packing)
            alone = model.hidden(tokens[:1, : longest - 1], torch.tensor([longest - 1]))[0]
        assert (packed[packing.places[0, : longest - 1]] - alone).abs().max() < 1e-5
        assert len(called) == times


def test_cuda_graphs_sample_only_what_stays_within_the_window(monkeypatch):
    _, tokenizer = small_model()
    engine = NativeEngine(windowed(14), tokenizer)
    monkeypatch.setattr(type(engine), "device", torch.device("cuda"), raising=False)
    monkeypatch.setattr(engine, "device", torch.device("cuda"), raising=False)
    prompts = [Prompt(tokens=(1, 2, 3), stream=(0,)), Prompt(tokens=(1,) * 6, stream=(1,))]
    monkeypatch.setattr("whet.engines.native.native_engine.is_served", lambda config: True)
    for tokens, some, is_fast in ((8, prompts, True), (9, prompts, False), (9, prompts[:1], True)):
        sampling = Sampling(max_tokens=tokens)
        assert engine._is_fast(sampling, engine._longest(sampling, some)) is is_fast


@pytest.mark.parametrize("case", ["gemma2", "gemma2-uncapped", "gemma3", "qwen3-moe", "qwen3-moe-some-dense", "olmoe"])
def test_other_blocks_go_to_the_plain_path(case, tmp_path, monkeypatch):
    build(*CASES[case]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    config = replace(model.config, head_dim=16, window=None, window_rope_base=None)
    assert not has_usual_blocks(config)
    assert not is_served(config)
    assert not fits_fused(model.model)
    monkeypatch.setattr(decoder_module, "fused_trunk", None)
    with torch.no_grad():
        model.hidden_packed(pack(TOKENS, MASK, GROUPS))


def test_a_bidirectional_model_has_no_window():
    with pytest.raises(UserError, match="window is 8: a bidirectional model attends to all tokens"):
        replace(windowed(8).config, causal=False)


def test_what_a_window_reaches():
    config = windowed(8).config
    assert [reaches_all(config, length) for length in (7, 8, 9)] == [True, True, False]
    assert reaches_all(replace(config, window=None), 1000)
