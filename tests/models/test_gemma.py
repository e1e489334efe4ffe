"""Gemma: both spellings of its config, rounded embeddings, soft caps by hand, and what is left to transformers."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from tests.models.hf_models import CASES, GEMMA, TINY, build
from tests.models.test_decoder import small
from whet.errors import UserError
from whet.models.decoder.families import FAMILIES, read_shape
from whet.models.foreign import ForeignLM
from whet.models.layers.attention import masked_attention, soft_capped
from whet.models.layers.layer_attention import row_attentions
from whet.models.load import load_model, new_shape
from whet.models.model_shape import covered

# As the hub states gemma-3-1b-it, written by transformers 4; smaller.
OLD_GEMMA3 = {
    "model_type": "gemma3_text",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 12,
    "sliding_window_pattern": 3,
}


def test_both_spellings_of_a_config_are_one_shape():
    old = read_shape(FAMILIES["gemma3_text"], OLD_GEMMA3)
    assert old.full_layers == (2, 5)
    assert (old.rope_base, old.window_rope_base, old.rope_scaling.factor) == (1e6, 1e4, 8.0)
    assert (old.window, old.query_scale, old.tied_head) == (12, 256.0, True)
    new = {key: value for key, value in OLD_GEMMA3.items() if "rope" not in key and key != "sliding_window_pattern"}
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 3
    new["layer_types"] = kinds[:8]
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert read_shape(FAMILIES["gemma3_text"], new) == old
    both = FAMILIES["gemma3_text"].write(old)
    assert both["rope_parameters"] == new["rope_parameters"]
    assert (both["rope_scaling"], both["rope_local_base_freq"]) == (OLD_GEMMA3["rope_scaling"], 1e4)


def test_absent_keys_have_the_values_of_transformers():
    few = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = {key: OLD_GEMMA3[key] for key in (*few, "max_position_embeddings")} | {"num_attention_heads": 8}
    two, three = (read_shape(FAMILIES[name], sizes) for name in ("gemma2", "gemma3_text"))
    assert (two.window, two.score_cap, two.logit_cap, two.full_layers) == (4096, 50.0, 30.0, (1, 3, 5, 7))
    assert (three.window, three.score_cap, three.logit_cap, three.full_layers) == (4096, None, None, (5,))
    assert (two.head_dim, two.query_scale, two.rope_base) == (256, 256.0, 10000.0)
    assert read_shape(
        FAMILIES["gemma2"], {**sizes, "sliding_window": None, "final_logit_softcapping": None}
    ) == replace(two, window=None, logit_cap=None)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_activation": "gelu"},
        {"attn_logit_softcapping": 5.0},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 100.0}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_differs_goes_to_transformers(change, tmp_path):
    build("Gemma3Text", TINY | GEMMA | change).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path), ForeignLM)


def test_bidirectional_gemma_is_refused(tmp_path):
    build("Gemma3Text", TINY | GEMMA | {"use_bidirectional_attention": True}).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="computes its logits in a way that is not supported"):
        load_model(tmp_path)


@torch.no_grad()
def test_embeddings_are_scaled_in_the_dtype_of_their_weights(tmp_path):
    """√48 is 6.928, in bf16 6.9375: transformers rounds it."""
    oracle = build(*CASES["gemma3"])
    oracle.save_pretrained(tmp_path)
    model, tokens = load_model(tmp_path), torch.arange(97)
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = (one.to(dtype).model for one in (model, oracle))
        scaled = ours.scaled(ours.embed_tokens(tokens))
        assert torch.equal(scaled, theirs.embed_tokens(tokens))
    assert float(scaled[5, 0] / ours.embed_tokens(tokens)[5, 0]) == pytest.approx(6.9375, rel=2**-8)


def test_soft_caps_by_hand():
    capped = soft_capped(torch.tensor([0.0, 1.0, -3.0, 1e6]), 2.0).tolist()
    assert capped == pytest.approx([0.0, 2 * math.tanh(0.5), -2 * math.tanh(1.5), 2.0])
    queries, keys = torch.tensor([[[[3.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    values = torch.tensor([[[[1.0], [0.0]]]])
    first = math.exp(2 * math.tanh(3 / math.sqrt(2) / 2))
    found = masked_attention(queries, keys, values, torch.tensor([[True, True]]), 2.0)
    assert found.item() == pytest.approx(first / (first + 1))
    assert masked_attention(queries, keys, values, torch.tensor([[False, True]]), 2.0).item() == 0


def test_capped_scores_are_not_kept_for_the_backward_pass():
    config = replace(small("gemma2").config, window=None)
    attend = row_attentions(config, torch.tensor([40]), 40)[0]
    q, k, v = (torch.randn(1, 4, 40, 8, requires_grad=True) for _ in range(3))
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
        out = attend(q, k, v)
    assert sum(sizes) < 4 * 40 * 40  # the scores of one head would be 1,600 numbers, of four 6,400
    out.sum().backward()
    assert q.grad.abs().sum() > 0


@torch.no_grad()
def test_a_capped_head_is_no_plain_product():
    model = small("gemma2")
    assert model.head_weight is None
    assert model.head_matrix is model.model.embed_tokens.weight
    states = 100 * torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert model.head(states).abs().max() <= 30
    assert (states @ model.head_matrix.T).abs().max() > 30
    assert small("gemma3_text").head_weight is not None


def test_new_models_have_the_pattern_of_their_family():
    shape = {"vocab_size": 97, "layers": 13, "heads": 4, "width": 32, "context": 48}
    assert new_shape("gemma2", **shape).full_layers == (1, 3, 5, 7, 9, 11)
    assert new_shape("gemma3_text", **shape).full_layers == (5, 11)
    assert (small("gemma3_text").model.norm.scale.mean() - 1).abs() < 0.1  # its weights begin at 0


def test_a_new_bidirectional_gemma_is_refused():
    with pytest.raises(UserError, match="gemma2 has sliding windows, and a bidirectional model attends to all tokens"):
        new_shape("gemma2", vocab_size=97, layers=2, heads=4, width=32, context=48, causal=False)


def test_saved_configs_keep_the_kinds_of_layers(tmp_path):
    build(*CASES["gemma2-uncapped"]).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    (tmp_path / "again").mkdir()
    model.save(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert saved["layer_types"] == ["full_attention", "full_attention", "sliding_attention"]
    assert load_model(tmp_path / "again").config == model.config


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000: expected at most"),  # before a list is made
        ({"sliding_window_pattern": 0}, "'sliding_window_pattern' is 0: expected a whole number above 0"),
        ({"sliding_window_pattern": -1}, "'sliding_window_pattern' is -1: expected a whole number above 0"),
        ({"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' is 0: expected a number above 0"),
        ({"final_logit_softcapping": -1.0}, "'final_logit_softcapping' is -1: expected a number above 0"),
    ],
)
def test_impossible_numbers_are_named(tmp_path, change, told):
    hf = {**TINY, **GEMMA, "model_type": "gemma3_text", **change}
    with pytest.raises(UserError, match=told):
        covered(tmp_path, hf)


def test_kinds_of_layers_that_are_no_words(tmp_path):
    assert covered(tmp_path, {**TINY, **GEMMA, "model_type": "gemma2", "layer_types": [{}, [], 1]}) is None
