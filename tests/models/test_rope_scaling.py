"""Scaled rotary positions in both spellings of a config, and what becomes of kinds that the decoder does not have."""

from __future__ import annotations

import json

import pytest
import torch

from tests.models.hf_models import LLAMA3, TINY, build, oracle_logits
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES, read_shape
from whet.models.decoder.family import NotCovered
from whet.models.foreign import ForeignLM
from whet.models.layers.part_shapes import RopeScaling
from whet.models.load import load_model, model_summary

SIZES = {key: TINY[key] for key in TINY if "token" not in key}
HALF = [1.0, 1.5, 2.0, 4.0]  # a factor for each of the head_dim / 2 frequencies
OTHERS = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": HALF,
        "long_factor": [8.0 * factor for factor in HALF],
        "original_max_position_embeddings": 16,
    },
}
KNOWN = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, RopeScaling(kind="linear", factor=4.0)),
    "llama3": (
        {key: value for key, value in LLAMA3.items() if key != "rope_theta"},
        RopeScaling(
            kind="llama3", factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=16
        ),
    ),
}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "olmo2", "olmoe", "gemma2"])
@pytest.mark.parametrize("kind", KNOWN)
def test_both_spellings_are_one_shape(family, kind):
    stated, scaling = KNOWN[kind]
    older = {("type" if key == "rope_type" else key): value for key, value in stated.items()}
    spellings = (
        {"rope_theta": 500.0, "rope_scaling": stated},
        {"rope_theta": 500, "rope_scaling": older},
        {"rope_parameters": {**stated, "rope_theta": 500.0}},
    )
    for spelling in spellings:
        shape = read_shape(FAMILIES[family], SIZES | {"head_dim": 8} | spelling)
        assert (shape.rope_base, shape.rope_scaling) == (500.0, scaling)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt2"])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_are_named(family, kind):
    stated = OTHERS[kind]
    older = {("type" if key == "rope_type" else key): value for key, value in stated.items()}
    full = {"full_attention": stated | {"rope_theta": 100.0}}
    new = full if family == "gemma3_text" else stated | {"rope_theta": 100.0}
    sizes = SIZES | {"head_dim": 8, "first_k_dense_replace": 3}
    for spelling in ({"rope_scaling": stated}, {"rope_scaling": older}, {"rope_parameters": new}):
        with pytest.raises(NotCovered, match=f"rope scaling '{kind}' is not supported by the decoder"):
            read_shape(FAMILIES[family], sizes | spelling)


@pytest.mark.parametrize("kind", OTHERS)
@torch.no_grad()
def test_other_kinds_are_computed_by_transformers(kind, tmp_path):
    """With frequencies that do not depend on the length: dynamic ones change beyond the context, which is refused."""
    oracle = build("Llama", TINY | {"rope_parameters": OTHERS[kind] | {"rope_theta": 100.0}})
    oracle.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, ForeignLM)
    assert model_summary(tmp_path)["implementation"] == "transformers"
    assert model.context == (16 if kind == "longrope" else 64)
    row = torch.arange(model.context) % 97
    found = model.head(model.hidden(row[None], torch.tensor([len(row)])))[0]
    assert (found - oracle_logits(oracle, row)).abs().max() < 1e-5
    states, cache = model.begin(row[None, :5], torch.tensor([5]), room=len(row) - 5)
    for token in row[5:]:
        states = model.extend(token[None], cache)
    assert (model.head(states)[0] - found[-1]).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["linear", "llama3"])
@torch.no_grad()
def test_a_checkpoint_of_transformers_4_has_the_logits_of_one_of_5(kind, tmp_path):
    stated, _ = KNOWN[kind]
    oracle = build("Llama", TINY | {"rope_parameters": stated | {"rope_theta": 500.0}})
    oracle.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 500.0, "rope_scaling": stated}))
    model, row = load_model(tmp_path), torch.arange(60)
    assert isinstance(model, Decoder)
    assert (model(row[None], torch.tensor([60]))[0] - oracle_logits(oracle, row)).abs().max() < 1e-5
