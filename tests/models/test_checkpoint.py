"""Checkpoints: what transformers writes we read, what we write transformers reads, and broken files are named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.models.hf_models import CASES, TINY, build, oracle_logits
from whet.errors import RunFailed, UserError
from whet.models.decoder.families import FAMILIES
from whet.models.load import load_model, new_model
from whet.models.storage.safetensors_files import fingerprint

TOKENS = torch.randint(3, 97, (1, 23), generator=torch.Generator().manual_seed(5))
SIZES = {"vocab_size": 97, "layers": 2, "heads": 4, "width": 32, "context": 48}


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model.head(model.hidden(TOKENS, torch.tensor([23])))[0]


def in_transformers(directory: Path):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


@pytest.fixture
def saved(tmp_path) -> Path:
    """A small Llama as we write it."""
    new_model("llama", **SIZES, seed=0, eos=2).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_a_round_trip_through_us_changes_no_bit_and_no_logit(case, tmp_path):
    first, second = tmp_path / "theirs", tmp_path / "ours"
    second.mkdir()
    oracle = build(*CASES[case])
    oracle.save_pretrained(first)
    model = load_model(first)
    model.save(second)
    back = in_transformers(second)
    assert back.dtype == torch.float32
    original, returned = oracle.state_dict(), back.state_dict()
    assert original.keys() == returned.keys()
    assert all(torch.equal(original[name], returned[name]) for name in original)
    assert (logits_of(model) - oracle_logits(back, TOKENS[0])).abs().max() < 1e-4
    assert fingerprint(load_model(second)) == fingerprint(model)
    kept = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "rope_parameters", "max_position_embeddings")
    theirs, ours = oracle.config.to_dict(), back.config.to_dict()
    assert {key: theirs.get(key) for key in kept} == {key: ours.get(key) for key in kept}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied_head", [True, False])
def test_models_from_nothing_load_in_transformers(family, tied_head, tmp_path):
    model = new_model(family, **SIZES, seed=3, tied_head=tied_head, eos=5)
    model.save(tmp_path)
    theirs = in_transformers(tmp_path)
    assert (logits_of(model) - oracle_logits(theirs, TOKENS[0])).abs().max() < 1e-4
    assert theirs.config.eos_token_id == 5
    assert theirs.config.bos_token_id is None
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert ("lm_head.weight" in set(file.keys())) is not tied_head
    assert fingerprint(load_model(tmp_path)) == fingerprint(model)


def test_config_json_speaks_to_transformers_4_and_5(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    build(*CASES["llama-llama3-rope"]).save_pretrained(tmp_path / "in")
    load_model(tmp_path / "in").save(tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    four = {**config["rope_scaling"], "rope_theta": config["rope_theta"]}
    assert four == config["rope_parameters"] == {**CASES["llama-llama3-rope"][1]["rope_parameters"]}
    assert config["dtype"] == config["torch_dtype"] == "float32"
    old = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
    (tmp_path / "out/config.json").write_text(json.dumps(old))
    assert load_model(tmp_path / "out").config == load_model(tmp_path / "in").config


@pytest.mark.parametrize("case", ["gpt2", "llama-untied"])
def test_sharded_checkpoints(case, tmp_path):
    oracle = build(*CASES[case])
    oracle.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert (logits_of(load_model(tmp_path)) - oracle_logits(oracle, TOKENS[0])).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_become_fp32_exactly(dtype, tmp_path):
    oracle = build(*CASES["llama-tied"]).to(dtype)
    oracle.save_pretrained(tmp_path)
    weights = load_model(tmp_path).state_dict()
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert all(torch.equal(weights[name], w.float()) for name, w in oracle.state_dict().items() if name in weights)


def test_gpt2_as_openai_stored_it(tmp_path):
    """Without the prefix, with causal masks among the weights and with the tied head spelled out."""
    oracle = build(*CASES["gpt2"])
    oracle.save_pretrained(tmp_path)
    stored = {name.removeprefix("transformer."): w.clone() for name, w in oracle.state_dict().items()}
    stored |= {"h.0.attn.bias": torch.ones(1, 1, 64, 64).tril().bool(), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    assert "lm_head.weight" in stored
    save_file(stored, tmp_path / "model.safetensors")
    assert (logits_of(load_model(tmp_path)) - oracle_logits(oracle, TOKENS[0])).abs().max() < 1e-4


def test_a_model_survives_the_replacement_of_its_file(saved):
    model = load_model(saved)
    before = fingerprint(model)
    (saved / "model.safetensors").write_bytes(b"\0" * 100_000)
    assert fingerprint(model) == before


def test_weights_share_no_memory(tmp_path):
    """A training checkpoint writes the state dict as it is, and safetensors refuses tensors that overlap."""
    build(*CASES["gpt2"]).save_pretrained(tmp_path)
    weights = load_model(tmp_path).state_dict()
    assert len({w.untyped_storage().data_ptr() for w in weights.values()}) == len(weights)
    save_file(weights, tmp_path / "state.safetensors")


def test_fingerprint_sees_every_bit_and_every_name(saved):
    model = load_model(saved)
    before = fingerprint(model)
    with torch.no_grad():
        weight = model.model.layers[1].mlp.down_proj.weight
        weight.view(torch.int32)[3, 4] ^= 1
        assert fingerprint(model) != before
        weight.view(torch.int32)[3, 4] ^= 1
    assert fingerprint(model) == before
    block = model.model.layers[0].mlp
    block.up_proj, block.gate_proj = block.gate_proj, block.up_proj
    assert fingerprint(model) != before


# Broken files: one line that names the file or the tensor


def test_truncated_weights(saved):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or truncated"):
        load_model(saved)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64])
def test_garbage_weights(saved, content):
    (saved / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or truncated"):
        load_model(saved)


def test_a_missing_shard(tmp_path):
    build(*CASES["llama-untied"]).save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(UserError, match=f"{shard.name} is missing"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "index", ['{"weight_map": {"a": "../../secret.safetensors"}}', '{"weight_map": 3}', "[1]", "{"]
)
def test_a_bad_index(tmp_path, index):
    build(*CASES["llama-untied"]).save_pretrained(tmp_path, max_shard_size="40KB")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        load_model(tmp_path)


def test_a_tensor_under_two_names(tmp_path):
    oracle = build(*CASES["gpt2"])
    oracle.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    stored["wte.weight"] = stored["transformer.wte.weight"] + 1
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"the same tensor as '(transformer\.)?wte.weight' and as '(transformer\.)?wte"):
        load_model(tmp_path)


def test_a_tensor_in_two_shards_is_read_where_the_index_says(tmp_path):
    oracle = build(*CASES["llama-untied"])
    oracle.save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    last = sorted(tmp_path.glob("model-*.safetensors"))[-1]
    name = next(name for name, file in index["weight_map"].items() if file != last.name)
    other = torch.zeros(oracle.state_dict()[name].shape)
    save_file({**load_file(last), name: other}, last)
    assert torch.equal(load_model(tmp_path).state_dict()[name], oracle.state_dict()[name])
    del index["weight_map"][name]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=f"has tensor '{name}' twice, in model-.* and {last.name}: remove one"):
        load_model(tmp_path)


def test_a_shard_that_is_no_file_is_not_waited_for(tmp_path):
    build(*CASES["llama-untied"]).save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(UserError, match=f"{shard.name} is no regular file"):
        load_model(tmp_path)


def test_only_pickled_weights(saved):
    shutil.move(saved / "model.safetensors", saved / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickled weights \(pytorch_model.bin\).*safetensors"):
        load_model(saved)


def test_no_weights(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no weights: expected model\.safetensors"):
        load_model(saved)


def edit(directory: Path, change) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_a_missing_tensor(saved):
    edit(saved, lambda tensors: [tensors.pop("model.norm.weight"), tensors.pop("lm_head.weight")])
    with pytest.raises(UserError, match=r"lacks tensor 'lm_head.weight' and 1 more"):
        load_model(saved)


def test_an_unexpected_tensor(saved):
    edit(saved, lambda tensors: tensors.update({"model.extra.weight": torch.zeros(2)}))
    with pytest.raises(UserError, match=r"unexpected tensor 'model.extra.weight'"):
        load_model(saved)


def test_a_tensor_of_the_wrong_shape(saved):
    edit(saved, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(31)}))
    with pytest.raises(UserError, match=r"'model.norm.weight' has shape \(31,\), config.json implies \(32,\)"):
        load_model(saved)


def test_gpt2_tensors_are_named_as_in_the_file(tmp_path):
    build(*CASES["gpt2"]).save_pretrained(tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"transformer.h.1.attn.c_attn.weight": torch.zeros(48, 100)}))
    with pytest.raises(UserError, match=r"'transformer.h.1.attn.c_attn.weight' has shape \(48, 100\)"):
        load_model(tmp_path)


def test_quantised_tensors(saved):
    edit(saved, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}))
    with pytest.raises(UserError, match=r"'model.norm.weight' is I8"):
        load_model(saved)


def test_a_tied_head_that_differs_from_the_embeddings(tmp_path):
    build("Llama", TINY | {"tie_word_embeddings": True}).save_pretrained(tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}))
    with pytest.raises(UserError, match="set tie_word_embeddings to false"):
        load_model(tmp_path)


def test_saving_where_nothing_can_be_written_fails_in_one_line(tmp_path):
    with pytest.raises(RunFailed, match="cannot be saved"):
        new_model("llama", **SIZES, seed=0).save(tmp_path / "absent")
