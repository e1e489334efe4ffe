"""A written GGUF file holds the model and its tokeniser as llama.cpp expects them.

Names are compared with those of the gguf package, tensors with transformers' weights, and whole files with one that
`gguf_fixture` writes by itself.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.hf_models import CASES, LLAMA3, TINY, build
from tests.small import train_bpe
from whet.errors import UserError
from whet.models.adapters.lora import LoRAShape, adapters, attach, trained_tensors
from whet.models.adapters.peft_files import write_adapter
from whet.models.load import load_model, new_model
from whet.models.merging import merge_adapter

pytest.importorskip("gguf")
import gguf

from tests.models.gguf_fixture import tiny_llama, write_gguf
from whet.models.download.gguf_import import convert_gguf
from whet.models.export.gguf_file import export_gguf

FAMILIES = ("GPT2", "Llama", "Mistral", "Phi3", "Qwen2", "Qwen3")
COVERED = [name for name, (family, _) in CASES.items() if family in FAMILIES and name != "qwen3-biases"]
SCALED = LLAMA3 | {"original_max_position_embeddings": 60}
ARCHITECTURES = {"mistral": "llama"}  # of families whose name in llama.cpp is another


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and tensors of a file, read by the gguf package."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def numbers(tensor: Any) -> torch.Tensor:
    return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()


def bpe_model(directory: Path, family: str = "llama", **shape: Any) -> Path:
    """A small model with byte-level BPE, saved."""
    tokenizer = train_bpe(["What is 12+34? Think if you must, and end with the number. 46"] * 4, 300)
    sizes = {"layers": 2, "heads": 4, "width": 32, "context": 64, "vocab_size": tokenizer.vocab_size, **shape}
    new_model(family, seed=0, eos=tokenizer.eos, **sizes).save(_made(directory))
    tokenizer.save(directory)
    return directory


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def transformers_model(name: str, directory: Path, **further: Any) -> Any:
    """A random model of transformers with a byte-level BPE vocabulary, saved."""
    family, settings = CASES[name]
    tokenizer = train_bpe(["some text"] * 4, 260)
    model = build(family, settings | {"vocab_size": tokenizer.vocab_size + 3} | further)
    model.save_pretrained(directory)
    tokenizer.save(directory)
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_that_was_converted_is_written_as_it_was(tied: bool, tmp_path: Path) -> None:
    """GGUF → Hugging Face → GGUF: every tensor and every setting of the first file."""
    write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=tied))
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf", dtype=torch.float32)
    written = export_gguf(str(tmp_path / "hf"), tmp_path / "again.gguf")
    (first, before), (second, after) = contents(tmp_path / "tiny.gguf"), contents(tmp_path / "again.gguf")
    assert {name: second[name] for name in first if not name.startswith("GGUF.")} == {
        name: value for name, value in first.items() if not name.startswith("GGUF.")
    }
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(numbers(tensor), numbers(after[name])), name
    assert (written.type, written.architecture, written.vocabulary) == ("f32", "llama", "gpt2/smollm")
    assert written.bytes == (tmp_path / "again.gguf").stat().st_size


@pytest.mark.parametrize("name", ["llama-tied", "llama-untied"])
def test_a_round_trip_keeps_the_logits(name: str, tmp_path: Path) -> None:
    original = transformers_model(name, tmp_path / "hf")
    export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf", type_="f32")
    convert_gguf(tmp_path / "model.gguf", tmp_path / "again", dtype=torch.float32)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, original(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", COVERED)
def test_tensors_have_the_names_and_layouts_of_llama_cpp(name: str, tmp_path: Path) -> None:
    original = transformers_model(name, tmp_path / "hf")
    export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf", type_="f32")
    fields, tensors = contents(tmp_path / "model.gguf")
    family = original.config.model_type
    architecture = ARCHITECTURES.get(family, family)
    assert fields["general.architecture"] == architecture
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], original.config.num_hidden_layers)
    state = original.state_dict()
    if original.config.tie_word_embeddings:
        del state["lm_head.weight"]
    for stored, weight in state.items():
        expected = weight
        if architecture == "gpt2" and weight.dim() == 2 and "transformer.h." in stored:
            expected = weight.t()
        if architecture == "llama" and ("q_proj" in stored or "k_proj" in stored):
            expected = weight[neighbour_rows(len(weight), original.config.head_dim)]
        named = names.get_name(stored, try_suffixes=(".weight", ".bias"))
        assert torch.equal(numbers(tensors.pop(named)).view(expected.shape), expected), stored
    assert set(tensors) <= {"rope_freqs.weight"}
    assert all(tensor.tensor_type == gguf.GGMLQuantizationType.F32 for tensor in tensors.values())


def neighbour_rows(rows: int, width: int) -> list[int]:
    """Of each head of `width` rows: 0, width/2, 1, width/2 + 1, …"""
    return [
        head + half * width // 2 + place
        for head in range(0, rows, width)
        for place in range(width // 2)
        for half in (0, 1)
    ]


def test_the_shape_is_in_the_settings(tmp_path: Path) -> None:
    transformers_model("qwen3", tmp_path / "hf")
    export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf")
    fields, _ = contents(tmp_path / "model.gguf")
    shape = {name.removeprefix("qwen3."): value for name, value in fields.items() if name.startswith("qwen3.")}
    assert shape == {
        "block_count": 3,
        "context_length": 64,
        "embedding_length": 48,
        "feed_forward_length": 80,
        "vocab_size": 263,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.key_length": 10,
        "attention.value_length": 10,
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
        "rope.dimension_count": 10,
        "rope.freq_base": 10000.0,
    }


def test_rope_scaling_and_windows(tmp_path: Path) -> None:
    transformers_model("llama-linear-rope", tmp_path / "linear")
    export_gguf(str(tmp_path / "linear"), tmp_path / "linear.gguf")
    fields, tensors = contents(tmp_path / "linear.gguf")
    assert (fields["llama.rope.scaling.type"], fields["llama.rope.scaling.factor"]) == ("linear", 4.0)
    assert "rope_freqs.weight" not in tensors

    transformers_model("llama-llama3-rope", tmp_path / "llama3", rope_parameters=SCALED)
    export_gguf(str(tmp_path / "llama3"), tmp_path / "llama3.gguf")
    fields, tensors = contents(tmp_path / "llama3.gguf")
    assert "llama.rope.scaling.type" not in fields
    expected = [llama3_factor(2 * math.pi * SCALED["rope_theta"] ** (2 * place / 8)) for place in range(4)]
    assert expected[0] == 1.0 < expected[1] < expected[2] == 8.0  # all three cases of the formula
    np.testing.assert_allclose(numbers(tensors["rope_freqs.weight"]), expected, rtol=1e-5)

    transformers_model("mistral-window", tmp_path / "window")
    export_gguf(str(tmp_path / "window"), tmp_path / "window.gguf")
    assert contents(tmp_path / "window.gguf")[0]["llama.context_length"] == 48  # up to the window, not 64


def llama3_factor(wavelength: float) -> float:
    """What a frequency is divided by (Llama 3.1's scaling), written out by cases."""
    turns, low, high = 60 / wavelength, SCALED["low_freq_factor"], SCALED["high_freq_factor"]
    if turns > high:
        return 1.0
    if turns < low:
        return SCALED["factor"]
    smooth = (turns - low) / (high - low)
    return 1 / ((1 - smooth) / SCALED["factor"] + smooth)


@pytest.mark.parametrize(("kind", "number"), [("f32", 0), ("f16", 1), ("q8_0", 7), ("bf16", 32)])
def test_types(kind: str, number: int, tmp_path: Path) -> None:
    model = load_model(bpe_model(tmp_path / "hf", width=64, mlp_width=72))
    written = export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf", type_=kind)
    fields, tensors = contents(tmp_path / "model.gguf")
    assert (written.type, fields["general.file_type"]) == (kind, number)
    assert fields.get("general.quantization_version") == (2 if kind == "q8_0" else None)
    types = {name: tensor.tensor_type.name.lower() for name, tensor in tensors.items()}
    assert types["blk.0.attn_norm.weight"] == types["output_norm.weight"] == "f32"
    assert types["blk.0.ffn_down.weight"] == ("f16" if kind == "q8_0" else kind)  # rows of 72 are no whole blocks
    assert types["token_embd.weight"] == types["blk.1.attn_v.weight"] == kind
    step = {"f32": 0.0, "f16": 2.0**-10, "bf16": 2.0**-7, "q8_0": 1 / 127}[kind]
    for name, ours in (("blk.1.attn_v", "self_attn.v_proj"), ("blk.1.ffn_gate", "mlp.gate_proj")):
        weight = model.state_dict()[f"model.layers.1.{ours}.weight"]
        stored = numbers(tensors[f"{name}.weight"])
        largest = weight.abs().max() if kind == "q8_0" else weight.abs()
        assert bool(((stored - weight).abs() <= step * largest + 1e-7).all())
        assert bool((stored != weight).any()) == (kind != "f32")
        if kind in ("f16", "bf16"):  # small updates survive, as in a saved model
            model.save(tmp_path / "hf", {"f16": torch.float16, "bf16": torch.bfloat16}[kind])
            assert torch.equal(stored, load_model(tmp_path / "hf").state_dict()[f"model.layers.1.{ours}.weight"])


def test_the_type_of_the_model_is_kept(tmp_path: Path) -> None:
    model = load_model(bpe_model(tmp_path / "hf"))
    model.save(tmp_path / "hf", torch.bfloat16)
    stored = load_model(tmp_path / "hf").state_dict()["model.layers.0.mlp.up_proj.weight"]
    assert export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf").type == "bf16"
    assert torch.equal(numbers(contents(tmp_path / "model.gguf")[1]["blk.0.ffn_up.weight"]), stored)


def test_weights_beyond_f16_are_refused(tmp_path: Path) -> None:
    model = load_model(bpe_model(tmp_path / "hf"))
    with torch.no_grad():
        model.state_dict()["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5
    model.save(tmp_path / "hf")
    with pytest.raises(UserError, match=r"up_proj.weight has values beyond those of f16, 65504: use --type bf16"):
        export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf", type_="f16")
    assert list(tmp_path.glob("*model.gguf*")) == []


@pytest.mark.parametrize(
    ("value", "width", "kind", "told"),
    [
        (1e5, 24, "q8_0", "beyond those of f16"),  # rows that are no whole number of blocks are in f16
        (1e7, 32, "q8_0", "beyond those of f16"),  # a scale of 1e7 / 127
        (math.nan, 32, "f32", "damaged: model.layers.0.mlp.up_proj.weight has values that are not finite"),
        (math.nan, 32, "q8_0", "not finite"),
    ],
)
def test_no_file_has_numbers_that_are_not_finite(
    value: float, width: int, kind: str, told: str, tmp_path: Path
) -> None:
    model = load_model(bpe_model(tmp_path / "hf", width=width))
    with torch.no_grad():
        model.state_dict()["model.layers.0.mlp.up_proj.weight"][0, 0] = value
    model.save(tmp_path / "hf")
    with pytest.raises(UserError, match=told):
        export_gguf(str(tmp_path / "hf"), tmp_path / "model.gguf", type_=kind)
    assert list(tmp_path.glob("*model.gguf*")) == []


def test_an_adapter_is_merged_and_a_run_is_its_best_model(tmp_path: Path) -> None:
    base = bpe_model(tmp_path / "base")
    model = load_model(base)
    assert isinstance(model, torch.nn.Module)
    shape = LoRAShape(rank=2, alpha=4.0)
    layers = attach(model, shape, seed=0)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(generator=torch.Generator().manual_seed(1))
    adapter = _made(tmp_path / "run" / "best_model")
    write_adapter(adapter, trained_tensors(model), shape, base=base, layers=layers)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(base / name, adapter)
    merge_adapter(str(adapter), tmp_path / "merged")
    export_gguf(str(tmp_path / "merged"), tmp_path / "merged.gguf")
    export_gguf(str(tmp_path / "run"), tmp_path / "run.gguf")
    (fields, tensors), (_, expected) = contents(tmp_path / "run.gguf"), contents(tmp_path / "merged.gguf")
    export_gguf(str(base), tmp_path / "base.gguf")
    unchanged = contents(tmp_path / "base.gguf")[1]
    assert fields["general.name"] == "run"
    for name, tensor in tensors.items():
        assert torch.equal(numbers(tensor), numbers(expected[name])), name
    assert not torch.equal(numbers(tensors["blk.0.attn_q.weight"]), numbers(unchanged["blk.0.attn_q.weight"]))


def test_models_that_llama_cpp_does_not_compute_are_refused(tmp_path: Path) -> None:
    for name, said in {
        "olmo2": "family 'olmo2' cannot be written as GGUF: only llama, mistral, qwen2, qwen3, phi3, gpt2 can",
        "deepseek-v3": "family 'deepseek_v3' cannot",
        "qwen3-biases": "llama.cpp's qwen3 has no biases on the outputs",
    }.items():
        transformers_model(name, tmp_path / name)
        with pytest.raises(UserError, match=said):
            export_gguf(str(tmp_path / name), tmp_path / "x.gguf")
    bpe_model(tmp_path / "both", causal=False)
    with pytest.raises(UserError, match="is a bidirectional model"):
        export_gguf(str(tmp_path / "both"), tmp_path / "x.gguf")

    def changed(directory: str, **settings: Any) -> str:
        path = bpe_model(tmp_path / directory) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        return str(path.parent)

    for directory, said in {
        changed("unknown", model_type="mamba"): "family 'mamba' cannot be written as GGUF: only llama",
        changed("yarn", rope_parameters={"rope_type": "yarn", "factor": 2.0}): "settings that whet's own decoder",
        changed("head", architectures=["LlamaForSequenceClassification"]): "holds a LlamaForSequenceClassification",
    }.items():
        with pytest.raises(UserError, match=said):
            export_gguf(directory, tmp_path / "x.gguf")
    pair = {
        "model.layers.0.mlp.up_proj.lora_A": torch.ones(1, 8),
        "model.layers.0.mlp.up_proj.lora_B": torch.ones(9, 1),
    }
    own = {**pair, "score.weight": torch.ones(1, 8)}
    shape = LoRAShape(rank=1, alpha=1.0)
    write_adapter(tmp_path / "judge", own, shape, base=bpe_model(tmp_path / "base"), layers=["up_proj"], task="SEQ_CLS")
    with pytest.raises(
        UserError, match="judge is the adapter of a reward model, and only a language model becomes GGUF"
    ):
        export_gguf(str(tmp_path / "judge"), tmp_path / "x.gguf")
    assert list(tmp_path.glob("*.gguf")) == []


def test_shapes_that_llama_cpp_does_not_have_are_refused(tmp_path: Path) -> None:
    tokenizer = train_bpe(["some text"] * 4, 260)
    for family, settings, said in (
        ("Qwen2", {"head_dim": 10}, r"qwen2 has no heads whose widths \(6 · 10\)"),
        ("Qwen2", {"rope_parameters": LLAMA3}, "qwen2 has no rope scaling of the kind 'llama3'"),
    ):
        directory = tmp_path / str(len(said))
        config = TINY | {"vocab_size": tokenizer.vocab_size} | settings
        build(family, config).save_pretrained(directory)
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        tokenizer.save(directory)
        with pytest.raises(UserError, match=said):
            export_gguf(str(directory), tmp_path / "x.gguf")


def test_without_the_package_its_name_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match="writing GGUF files needs the package gguf, which is not installed: pip"):
        export_gguf(str(tmp_path), tmp_path / "x.gguf")
