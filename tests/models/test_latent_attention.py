"""Multi-head latent attention against its equations, and its cache: what it holds, and what decoding reads in it."""

import json
from dataclasses import replace

import pytest
import torch

from tests.models.test_columns import Adapted
from tests.models.test_decoder import LENGTHS, TOKENS, assert_states_match
from whet.errors import UserError
from whet.models.cpu.column_decode import quickest_reader
from whet.models.decoder.decoder import Decoder, fits_fused
from whet.models.decoder.kv_cache import LatentCache
from whet.models.layers.attention import rotary_angles
from whet.models.layers.decoder_config import (
    DecoderConfig,
    all_heads_bytes_per_token,
    has_usual_blocks,
    is_served,
    kv_bytes_per_token,
    parameter_count,
)
from whet.models.layers.layer_attention import PackedAttention
from whet.models.layers.packing import pack
from whet.models.layers.part_shapes import LatentShape
from whet.models.load import load_model, new_model

USUAL = LatentShape(q_rank=7, kv_rank=10, nope_dim=6, rope_dim=4, value_dim=5)
SHAPES = {
    "usual": USUAL,
    "queries of full rank": replace(USUAL, q_rank=None),
    "halves": replace(USUAL, interleaved=False),
    "wide values": replace(USUAL, value_dim=13),
}


def latent_model(shape: LatentShape = USUAL, **changes: object) -> Decoder:
    config = new_model("deepseek_v3", vocab_size=97, layers=3, heads=4, width=32, context=48, seed=0).config
    made = Decoder(replace(config, latent=shape, head_dim=shape.head_dim, **changes), family="deepseek_v3", seed=0)
    with torch.no_grad():  # larger weights than at birth: attention that is far from uniform
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)) * 0.2)
    return made


def naive(layer, states, config):
    """The equations of DeepSeek-V2 (appendix C) for one sequence (T, D): token by token and head by head, in fp64.

    Positions turn complex numbers: of the pairs (2i, 2i + 1), or (i, i + rope_dim / 2).
    """
    shape, weights = config.latent, {name: tensor.double() for name, tensor in layer.named_parameters()}

    def product(name, x):
        out = weights[f"{name}.weight"] @ x
        return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out

    def norm(name, x):
        return x / (x.square().mean() + 1e-6).sqrt() * weights[f"{name}.weight"]

    def turned(x, position):
        pairs = x.view(-1, 2) if shape.interleaved else x.view(2, -1).t()
        angles = position * 10000.0 ** (-torch.arange(len(pairs)).double() / len(pairs))
        number = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(number).reshape(-1)

    queries, keys, values = [], [], []
    for position, h in enumerate(states):
        q = norm("q_a_layernorm", product("q_a_proj", h)) if shape.q_rank else h
        q = product("q_b_proj" if shape.q_rank else "q_proj", q).view(config.heads, -1)
        both = product("kv_a_proj_with_mqa", h)
        c, shared = norm("kv_a_layernorm", both[: shape.kv_rank]), turned(both[shape.kv_rank :], position)
        up = product("kv_b_proj", c).view(config.heads, -1)
        n = shape.nope_dim
        queries.append([torch.cat((one[:n], turned(one[n:], position))) for one in q])
        keys.append([torch.cat((one[:n], shared)) for one in up])
        values.append([one[n:] for one in up])
    out = []
    for t in range(len(states)):
        heads = []
        for head in range(config.heads):
            scores = torch.stack([queries[t][head] @ keys[j][head] for j in range(t + 1)]) / shape.head_dim**0.5
            heads.append(sum(p * values[j][head] for j, p in enumerate(scores.softmax(0))))
        out.append(product("o_proj", torch.cat(heads)))
    return torch.stack(out)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("biases", [False, True])
def test_a_packed_layer_has_the_values_and_gradients_of_the_equations(shape, biases):
    """Two prompts with branches: the rows of group 0 share theirs, whose states get the gradients of all of them."""
    model = latent_model(shape, attention_bias=biases, attention_out_bias=biases)
    layer, config = model.model.layers[0].self_attn, model.config
    rows, prompts, groups = [7, 5, 6], [3, 3, 2], torch.tensor([0, 0, 1])
    columns = torch.arange(7)
    mask = (torch.tensor(prompts)[:, None] <= columns) & (columns < torch.tensor(rows)[:, None])
    packing = pack(torch.zeros(3, 7, dtype=torch.int64), mask, groups)
    states = torch.randn(len(packing.tokens), 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
    pull = torch.randn(3, 7, 32, generator=torch.Generator().manual_seed(3))
    wanted = [states, *layer.parameters()]

    attended = layer(states[None], rotary_angles(config, packing.positions), PackedAttention(packing))[0]
    lengths = [length - 1 for length in rows]  # the last token predicts nothing and is not packed
    found = [attended[packing.places[row, :length]] for row, length in enumerate(lengths)]
    expected = [naive(layer, states[packing.places[row, :n]].double(), config) for row, n in enumerate(lengths)]
    grads = []
    for outputs in (found, expected):
        total = sum((out * pull[row, : len(out)]).sum() for row, out in enumerate(outputs))
        grads.append(torch.autograd.grad(total, wanted, retain_graph=True))
    for one, two in zip((*found, *grads[0]), (*expected, *grads[1]), strict=True):
        assert two.abs().max() > 1e-2
        assert float(((one - two).norm() / two.norm()).detach()) < 2e-6


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parameters_are_counted(shape):
    for biases in (False, True):
        model = latent_model(shape, attention_bias=biases, attention_out_bias=biases)
        assert parameter_count(model.config) == sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def test_no_token_sees_the_future():
    model = latent_model()
    changed = TOKENS.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 97
    before, after = (model.hidden(tokens, torch.full((4,), 11)) for tokens in (TOKENS, changed))
    assert torch.equal(before[:, :6], after[:, :6])
    assert all((before[:, t] - after[:, t]).abs().max() > 1e-3 for t in range(6, 11))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.no_grad()
def test_absorbed_decoding_is_the_full_forward_pass(shape):
    model = latent_model(shape)
    _, cache = model.begin(TOKENS, LENGTHS, room=30)
    rows = torch.tensor([3, 0, 0, 2, 1, 1])
    cache.select(rows)
    sequences = [TOKENS[i, : LENGTHS[i]].tolist() for i in rows.tolist()]
    for step in range(8):
        if step == 4:
            cache.select(torch.tensor([4, 1, 2]))
            sequences = [sequences[i] for i in (4, 1, 2)]
        new = torch.randint(0, 97, (len(sequences),), generator=torch.Generator().manual_seed(step))
        states = model.extend(new, cache)
        sequences = [[*one, token] for one, token in zip(sequences, new.tolist(), strict=True)]
        assert_states_match(model, sequences, states)


@torch.no_grad()
def test_the_cache_holds_one_latent_and_one_rotary_key_a_token(monkeypatch):
    """3 layers × (10 + 4) fp32 numbers, where the keys and values of 4 heads would be 4 × (10 + 5)."""
    model = latent_model()
    _, cache = model.begin(TOKENS, LENGTHS, room=5)
    assert isinstance(cache, LatentCache)
    assert cache.latents.shape == (3, 4, 11, 14)
    kept = cache.latents.clone()
    assert kept.numel() * kept.element_size() == 4 * 11 * kv_bytes_per_token(model.config, torch.float32)
    assert kv_bytes_per_token(model.config, torch.float32) == 3 * 14 * 4
    assert all_heads_bytes_per_token(model.config, torch.bfloat16) == 3 * 4 * (10 + 5) * 2

    def expanded(*given):
        raise AssertionError("keys and values of the past were computed")

    for layer in model.model.layers:
        monkeypatch.setattr(layer.self_attn.kv_b_proj, "forward", expanded)
    for _ in range(5):
        model.extend(TOKENS[:, 0], cache)
    assert cache.latents.shape == (3, 4, 16, 14)
    assert torch.equal(cache.latents[:, 0, :11], kept[:, 0])  # the longest row
    assert torch.equal(cache.latents[:, 1, 7:11], kept[:, 1, :4])  # shorter ones are aligned at the end
    with pytest.raises(UserError, match="17 tokens exceeds the cache of 16: begin with more room"):
        model.extend(TOKENS[:, 0], cache)


@torch.no_grad()
def test_an_adapter_of_the_up_projection_is_not_passed_over():
    model = latent_model()
    attention = model.model.layers[1].self_attn
    attention.kv_b_proj = Adapted(attention.kv_b_proj)
    _, cache = model.begin(TOKENS, LENGTHS, room=3)
    states = model.extend(TOKENS[:, 0], cache)
    assert_states_match(model, [[*TOKENS[i, :n].tolist(), int(TOKENS[i, 0])] for i, n in enumerate(LENGTHS)], states)


def test_kernels_of_plain_attention_are_not_used():
    model = latent_model()
    llama = new_model("llama", vocab_size=97, layers=1, heads=4, width=64, context=48, seed=0)
    assert is_served(llama.config)
    assert fits_fused(llama.model)
    assert not has_usual_blocks(model.config)
    assert not is_served(replace(model.config, latent=replace(USUAL, nope_dim=60), head_dim=64))
    assert not fits_fused(model.model)
    assert quickest_reader(model.model) is model.model


@torch.no_grad()
def test_a_saved_model_is_read_back(tmp_path):
    for shape in SHAPES.values():
        model = latent_model(shape)
        model.save(tmp_path)
        again = load_model(tmp_path)
        assert isinstance(again, Decoder)
        assert again.config == model.config
        assert torch.equal(again(TOKENS, LENGTHS), model(TOKENS, LENGTHS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 11}, "head_dim is 11: expected nope_dim \\+ rope_dim, which is 10"),
        ({"kv_heads": 2}, "kv_heads is 2"),
        ({"positions": "learned"}, "positions is 'learned': latent attention is implemented for 'rope'"),
        ({"norm": "layer"}, "norm is 'layer'"),
        ({"qk_norm": "head"}, "qk_norm is 'head'"),
        ({"norm_place": "post"}, "norm_place is 'post'"),
    ],
)
def test_what_is_not_implemented_is_refused(change, message):
    config: DecoderConfig = latent_model().config
    with pytest.raises(UserError, match=message):
        replace(config, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": -3}, "'kv_lora_rank' is -3: expected a whole number above 0"),
        ({"q_lora_rank": 0}, "'q_lora_rank' is 0: expected a whole number above 0"),
        ({"qk_rope_head_dim": 5}, "'qk_rope_head_dim' is 5: rotary positions need an even one"),
        ({"v_head_dim": 10**9}, "'v_head_dim' is 1000000000: expected at most 65536"),
        ({"qk_nope_head_dim": "6"}, "'qk_nope_head_dim' is '6': expected int"),
        ({"num_key_value_heads": 1}, "'num_key_value_heads' is 1: latent attention has keys for each of 4 heads"),
    ],
)
def test_errors_name_the_keys_of_config_json(change, message, tmp_path):
    latent_model().save(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**written, **change}), "utf-8")
    with pytest.raises(UserError, match=message):
        load_model(tmp_path)
