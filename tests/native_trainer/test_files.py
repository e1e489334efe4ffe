"""Weights that the trainer in C++ writes are read by whet, transformers and safetensors, and the other way round."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from tests.native_trainer.program import CONTEXT, VOCABULARY, repetitive, succeed, tiny, write_corpus
from whet.models.load import load_model

pytestmark = pytest.mark.native


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", repetitive(1000), training=900)


def trained(model: Path, corpus: Path, out: Path, *more: object) -> Path:
    succeed("train", "--model", model, "--data", corpus, "--out", out, "--steps", 3, "--lr", 1e-2, *more)
    return out / "checkpoints" / "step-3"


@pytest.mark.parametrize("tied", [True, False])
def test_exported_weights_give_transformers_logits(tmp_path: Path, corpus: Path, tied: bool) -> None:
    before = tiny(tmp_path / "model", scale=2, tied_head=tied, eos=7)
    saved = trained(tmp_path / "model", corpus, tmp_path / "run")
    ours, theirs = load_model(saved), GPT2LMHeadModel.from_pretrained(saved).eval()
    ids = torch.from_numpy(repetitive(4 * CONTEXT).reshape(4, CONTEXT))
    with torch.no_grad():
        logits = theirs(ids).logits
        assert torch.allclose(ours(ids, torch.full((4,), CONTEXT)), logits, atol=1e-5)
        assert not torch.allclose(before(ids, torch.full((4,), CONTEXT)), logits, atol=1e-2)
    assert theirs.config.eos_token_id == 7
    assert json.loads((saved / "config.json").read_text()) == json.loads((tmp_path / "model/config.json").read_text())


def test_weights_that_are_not_trained_come_back_bit_for_bit(tmp_path: Path, corpus: Path) -> None:
    """The checkpoint of step 0 has the given weights, in the very bytes that safetensors writes."""
    tiny(tmp_path / "model")
    trained(tmp_path / "model", corpus, tmp_path / "run")
    written = (tmp_path / "run/checkpoints/step-0/model.safetensors").read_bytes()
    assert written == (tmp_path / "model/model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly(tmp_path: Path, corpus: Path, dtype: torch.dtype) -> None:
    tiny(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    halves = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(halves, path, metadata={"format": "pt"})
    trained(tmp_path / "model", corpus, tmp_path / "run")
    found = load_file(tmp_path / "run/checkpoints/step-0/model.safetensors")
    assert found.keys() == halves.keys()
    assert all(torch.equal(found[name], halves[name].float()) for name in halves)


def test_moments_by_parameter_name(tmp_path: Path, corpus: Path) -> None:
    tiny(tmp_path / "model")
    saved = trained(tmp_path / "model", corpus, tmp_path / "run")
    weights, moments = load_file(saved / "model.safetensors"), load_file(saved / "optimizer.safetensors")
    expected = {f"{kind}/{name}" for kind in ("exp_avg", "exp_avg_sq") for name in weights}
    assert moments.keys() == expected
    assert all(float(tensor.abs().max()) > 0 for tensor in moments.values())
    assert all(bool((moments[f"exp_avg_sq/{name}"] >= 0).all()) for name in weights)
    with safe_open(saved / "model.safetensors", framework="pt") as handle:
        assert handle.metadata() == {"format": "pt"}


def test_old_spellings_and_copies_of_the_head_are_read(tmp_path: Path, corpus: Path) -> None:
    """As early versions of transformers saved GPT-2: no prefix, causal masks, and the tied head once more."""
    tiny(tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    original = load_file(path)
    old = {name.removeprefix("transformer."): tensor for name, tensor in original.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT)
    old["lm_head.weight"] = original["transformer.wte.weight"].clone()
    save_file(old, path)
    trained(tmp_path / "model", corpus, tmp_path / "run")
    found = load_file(tmp_path / "run/checkpoints/step-0/model.safetensors")
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in original)


def test_new_weights_are_distributed_as_in_python(tmp_path: Path, corpus: Path) -> None:
    layers, std = 8, 0.05
    config = {"model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": layers, "n_head": 4}
    config |= {"n_positions": CONTEXT, "initializer_range": std}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = []
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        arguments = ("--steps", 1, "--seed", seed, "--out", tmp_path / name)
        succeed("train", "--config", tmp_path / "config.json", "--data", corpus, *arguments)
        weights.append(load_file(tmp_path / name / "checkpoints/step-0/model.safetensors"))
        load_model(tmp_path / name / "checkpoints/step-1")
    first, again, other = weights
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])
    for name, tensor in first.items():
        if name.endswith("bias"):
            assert not tensor.any()
        elif tensor.ndim == 1:
            assert bool((tensor == 1).all())
        else:
            expected = std / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else std
            assert float(tensor.std()) == pytest.approx(expected, rel=0.06), name
            assert abs(float(tensor.mean())) < 4 * expected / math.sqrt(tensor.numel()), name
