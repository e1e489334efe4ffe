"""Finding the right implementation for a directory, models from nothing, and a real model that tells a story."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from tests.models.hf_models import CASES, TINY, build, oracle_logits
from whet.errors import UserError
from whet.files import read_object
from whet.models import load
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES
from whet.models.foreign import ForeignLM
from whet.models.layers.part_shapes import LatentShape
from whet.models.load import load_model, model_summary, new_model
from whet.models.model_shape import new_shape
from whet.models.storage import safetensors_files
from whet.models.storage.size_limits import check_claims, check_elements

STORIES = Path(__file__).resolve().parents[2] / "../shared/data/models/stories260K-hf"
SIZES = {"vocab_size": 97, "layers": 2, "heads": 4, "width": 32, "context": 48}


@pytest.mark.skipif(not STORIES.is_dir(), reason="the stories260K checkpoint is not on this machine")
@torch.no_grad()
def test_stories260k_tells_its_story():
    model = load_model(STORIES)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(STORIES / "tokenizer.json"))
    tokens = [1]
    state, cache = model.begin(torch.tensor([tokens]), torch.tensor([1]), room=60)
    for _ in range(60):
        tokens.append(int(model.head(state).argmax()))
        state = model.extend(torch.tensor(tokens[-1:]), cache)
    opening = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    assert tokenizer.decode(tokens[1:]).strip().startswith(opening)


DEEPSEEK = CASES["deepseek-v3"][1]
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 8}
YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 100.0}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Qwen2", TINY | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("Llama", TINY | {"hidden_act": "gelu"}),
        ("Llama", TINY | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 100.0}}),
        ("GPT2", CASES["gpt2"][1] | {"scale_attn_by_inverse_layer_idx": True}),
        ("GPT2", CASES["gpt2"][1] | {"activation_function": "relu"}),
        ("DeepseekV3", DEEPSEEK | {"first_k_dense_replace": 2, **EXPERTS}),
        ("DeepseekV2", DEEPSEEK | {"first_k_dense_replace": 0, **EXPERTS}),
        ("DeepseekV3", DEEPSEEK | {"rope_parameters": YARN}),
        ("DeepseekV3", DEEPSEEK | {"rope_parameters": YARN | {"rope_type": "linear", "mscale_all_dim": 0.7}}),
    ],
)
def test_what_the_decoder_does_not_compute_goes_to_transformers(name, settings, tmp_path):
    build(name, settings).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path), ForeignLM)
    assert model_summary(tmp_path)["implementation"] == "transformers"


def test_a_sliding_window_that_is_switched_off_does_not_matter(tmp_path):
    build("Qwen2", TINY | {"use_sliding_window": False, "sliding_window": 8}).save_pretrained(tmp_path)
    assert isinstance(load_model(tmp_path), Decoder)


def test_new_latents_have_the_usual_proportions():
    """The shape that small research models use; and DeepSeek-V2's own ratios: kv_rank 4 d and rope_dim d / 2."""
    latent = new_shape("deepseek_v3", vocab_size=9, layers=1, heads=12, width=768, context=8).latent
    assert latent == LatentShape(q_rank=192, kv_rank=256, nope_dim=64, rope_dim=32, value_dim=64)
    few = new_shape("deepseek_v3", **SIZES, latent={"q_rank": 0, "value_dim": 5, "kv_rank": None})
    assert few.latent == LatentShape(q_rank=None, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=5)
    assert (few.head_dim, few.value_dim, few.kv_heads) == (12, 5, 4)


def test_new_models_have_the_usual_proportions():
    gpt2 = new_model("gpt2", **SIZES, seed=0).config
    assert (gpt2.mlp_width, gpt2.tied_head, gpt2.kv_heads, gpt2.head_dim) == (128, True, 4, 8)
    llama = new_model("llama", **SIZES, seed=0, kv_heads=2).config
    assert (llama.mlp_width, llama.tied_head, llama.kv_heads) == (88, False, 2)  # 8/3 · 32 = 85.3, up to eights
    assert new_model("qwen3", **SIZES, seed=0, mlp_width=50, tied_head=True).config.mlp_width == 50


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("gpt5", {}, "unknown model family 'gpt5': choose one of gpt2, llama"),
        ("llama", {"heads": 5}, "width is 32, which cannot be divided among 5 heads"),
        ("llama", {"heads": 0}, "cannot be divided among 0 heads"),
        ("llama", {"layers": -1}, "layers is -1"),
        ("llama", {"kv_heads": 3}, "kv_heads is 3: expected a divisor of the 4 heads"),
        ("gpt2", {"kv_heads": 2}, "no grouped-query attention"),
        ("deepseek_v3", {"kv_heads": 2}, "kv_heads is 2: latent attention has keys for each of 4 heads"),
        ("deepseek_v3", {"latent": {"rope_dim": 3}}, "rope_dim is 3: rotary positions need an even one"),
        ("deepseek_v3", {"latent": {"kv_rank": 0}}, "kv_rank is 0: expected a whole number above 0"),
        ("qwen3", {"latent": {"kv_rank": 9}}, "qwen3 has no latent attention: .* use deepseek_v2, deepseek_v3"),
    ],
)
def test_impossible_new_models(family, change, message):
    with pytest.raises(UserError, match=message):
        new_model(family, **{**SIZES, "seed": 0, **change})


def test_every_family_is_compared_with_transformers():
    compared = {getattr(transformers, f"{name}Config").model_type for name, _ in CASES.values()}
    assert compared >= set(FAMILIES)


# Numbers per token and layer, by hand: keys and values of each key head, of each query head.
CACHED = {
    **dict.fromkeys(("gpt2", "gpt2-untied"), 2 * 48),
    **dict.fromkeys(("llama-tied", "llama-biases", "llama-llama3-rope", "llama-linear-rope", "qwen2", "olmo2"), 2 * 16),
    **dict.fromkeys(("qwen3", "qwen3-biases", "qwen3-moe"), 2 * 20),
    "mistral": 2 * 24,
    **dict.fromkeys(("mistral-window", "mistral-short-window", "phi3", "phi3-tied"), 2 * 16),
    **dict.fromkeys(("gemma2", "gemma2-uncapped", "gemma3", "gemma3-scaled-rope"), 2 * 16),
    **dict.fromkeys(("qwen3-moe-some-dense", "olmoe"), 2 * 16),
    "llama-untied": 2 * 96,
    **dict.fromkeys((case for case in CASES if case.startswith("deepseek")), 12 + 4),
}
CACHED_OF_ALL_HEADS = {
    **dict.fromkeys(CASES, 2 * 48),
    **dict.fromkeys(("qwen3", "qwen3-biases", "qwen3-moe"), 2 * 60),
    "mistral": 2 * 72,
    "llama-untied": 2 * 96,
    **dict.fromkeys((case for case in CASES if case.startswith("deepseek")), 6 * (8 + 4 + 10)),
}


@pytest.mark.parametrize("case", CASES)
def test_summary_without_loading(case, tmp_path):
    oracle = build(*CASES[case]).to(torch.bfloat16)
    oracle.save_pretrained(tmp_path)
    assert model_summary(tmp_path) == {
        "family": oracle.config.model_type,
        "implementation": "decoder",
        "parameters": oracle.num_parameters(),
        "layers": oracle.config.num_hidden_layers,
        "width": 48,
        "context": 64,
        "vocab": 97,
        "kv_bytes_per_token": 2 * oracle.config.num_hidden_layers * CACHED[case],
        "kv_bytes_of_all_heads": 2 * oracle.config.num_hidden_layers * CACHED_OF_ALL_HEADS[case],
        "dtype": "bfloat16",
        "bytes": (tmp_path / "model.safetensors").stat().st_size,
    }


def test_no_directory(tmp_path):
    with pytest.raises(UserError, match=r"absent is not a directory: expected a model"):
        load_model(tmp_path / "absent")


def test_no_config(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config\.json is not valid JSON"),
        ("[]", r"config\.json holds a JSON list"),
        ("{}", r"config\.json names no model_type"),
        ('{"model_type": "llama"}', r"config\.json: 'hidden_size' is missing"),
        ('{"model_type": "gpt2", "n_embd": "wide"}', r"config\.json: 'n_embd' is 'wide': expected int"),
    ],
)
def test_unusable_configs(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        load_model(tmp_path)


def test_a_config_of_another_model(tmp_path):
    new_model("llama", **SIZES, seed=0).save(tmp_path)
    config = read_object(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match=r"lacks tensor 'model\.layers\.2\.input_layernorm\.weight' and 8 more"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0: expected a whole number above 0"),
        ({"num_key_value_heads": 3}, "'num_key_value_heads' is 3: expected a divisor of the 4 heads"),
        ({"head_dim": 7}, "'head_dim' is 7: rotary"),
        ({"head_dim": None, "hidden_size": 33}, "'hidden_size' is 33, which cannot be divided among 4 heads"),
        ({"rope_theta": 0, "rope_parameters": None}, "'rope_theta' is 0: expected a number above 0"),
        ({"rms_norm_eps": 2.0}, "'rms_norm_eps' is 2.0: expected at most 1"),
        ({"eos_token_id": 97}, "'eos_token_id' is 97: expected an id below 'vocab_size', which is 97"),
        ({"eos_token_id": [2, 99]}, "'eos_token_id' is 99"),
        ({"hidden_act": "wavy"}, "'hidden_act'"),
    ],
)
def test_errors_name_the_keys_of_the_file(tmp_path, change, message):
    new_model("llama", **SIZES, seed=0).save(tmp_path)
    config = read_object(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=rf"config\.json.*{message}"):
        load_model(tmp_path)


def test_quantised_models_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": {"bits": 4}}')
    with pytest.raises(UserError, match="quantised"):
        load_model(tmp_path)


def test_claims_may_reach_their_bounds_and_no_further(tmp_path):
    for tensors, most in ((3, 256), (300, 300)):
        check_claims({"num_hidden_layers": most}, tmp_path, tensors=tensors)
        with pytest.raises(
            UserError, match=rf"'num_hidden_layers' is {most + 1}, but the weights have only {tensors} "
        ):
            check_claims({"num_hidden_layers": most + 1}, tmp_path, tensors=tensors)
    check_elements(2 * 1000 + 2**26, 1000, tmp_path)
    with pytest.raises(UserError, match="a model of 67110865 elements, but the weights hold 1000"):
        check_elements(2 * 1000 + 2**26 + 1, 1000, tmp_path)
    shape = new_model("llama", **SIZES, seed=0).config
    assert replace(shape, layers=2**14).layers == 2**14
    with pytest.raises(UserError, match="layers is 16385: expected at most 16384"):
        replace(shape, layers=2**14 + 1)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_directory_that_is_replaced_meanwhile_is_read_again(tmp_path, monkeypatch, is_noticed):
    best, better = tmp_path / "best_model", tmp_path / "better"
    for seed, directory in enumerate((best, better)):
        directory.mkdir()
        new_model("llama", **SIZES, seed=seed).save(directory)
    looks = []

    def look(path):
        looks.append(path)
        if len(looks) == 1:
            best.rename(tmp_path / "old")
            better.rename(best)
            if is_noticed:
                raise UserError("a file of the new one does not fit the old list")

    monkeypatch.setattr(load, "refuse_damage", look)
    assert torch.equal(load_model(best).head_weight, new_model("llama", **SIZES, seed=1).head_weight)
    assert len(looks) == 2
    load_model(best)
    assert len(looks) == 3


def test_a_directory_that_stays_is_read_once(tmp_path, monkeypatch):
    looks = []

    def refuse(path):
        looks.append(path)
        raise UserError("damaged")

    monkeypatch.setattr(load, "refuse_damage", refuse)
    with pytest.raises(UserError, match="damaged"):
        load_model(tmp_path)
    assert len(looks) == 1


def test_a_model_without_a_causal_mask_is_refused(tmp_path):
    """transformers attends to later tokens there, as embedding models do."""
    build(*CASES["llama-untied"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    with pytest.raises(UserError, match="computes its logits in a way that is not supported"):
        load_model(tmp_path)


def test_large_models_are_saved_in_shards_that_transformers_loads(tmp_path, monkeypatch):
    oracle = build(*CASES["llama-untied"])
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    monkeypatch.setattr(safetensors_files, "SHARD_BYTES", 40_000)
    (tmp_path / "shards").mkdir()
    model.save(tmp_path / "shards")
    files = sorted(path.name for path in (tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * model_summary(tmp_path)["parameters"]
    assert set(index["weight_map"].values()) == set(files)
    row = torch.arange(30)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=torch.float32)
    again = load_model(tmp_path / "shards")
    for found in (oracle_logits(theirs, row), again(row[None], torch.tensor([30]))[0]):
        assert (found - oracle_logits(oracle, row)).abs().max() < 1e-4
