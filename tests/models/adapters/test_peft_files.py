"""Adapter directories: PEFT's names, what is read back, and what is refused."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.models.adapters.test_lora import adapted, read
from tests.small import small_model
from whet.errors import RunFailed, UserError
from whet.models.adapters.adapter_directory import is_adapter, merging_note
from whet.models.adapters.lora import LoRAShape, adapters, trained_tensors
from whet.models.adapters.peft_files import note_quantization, read_adapter, write_adapter
from whet.models.load import load_model, model_summary, new_model
from whet.models.merging import merge_adapter
from whet.models.model_tokenizer import model_tokenizer
from whet.models.reward.scoring import load_scorer
from whet.models.text.tokenizers import load_tokenizer

SHAPE = LoRAShape(rank=3, alpha=6.0)


@pytest.fixture
def place(tmp_path):
    """A base model and an adapter of it; returns the model with the adapter, too."""
    base, tokenizer = small_model("qwen3", sharp=3.0)
    for directory in (tmp_path / "base", tmp_path / "adapter"):
        directory.mkdir()
        tokenizer.save(directory)
    base.save(tmp_path / "base")
    model = adapted()
    layers = [name for name, _ in adapters(model)]
    write_adapter(tmp_path / "adapter", trained_tensors(model), SHAPE, base=tmp_path / "base", layers=layers)
    return tmp_path, model


def test_names_and_shapes_are_those_of_peft(place):
    tmp_path, _ = place
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(stored) == 28
    assert stored["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"].shape == (3, 32)
    assert stored["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"].shape == (32, 3)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6.0)
    assert config["target_modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_a_directory_loads_merged_into_its_base(place):
    tmp_path, model = place
    assert is_adapter(tmp_path / "adapter")
    assert not is_adapter(tmp_path / "base")
    found = load_model(tmp_path / "adapter")
    assert (read(found, packed=True) - read(model, packed=True)).abs().max() < 1e-5
    assert "LoRA of rank 3 on 14 layers" in model_summary(tmp_path / "adapter")["adapter"]


@pytest.mark.parametrize(("dtype", "near"), [("auto", 1e-6), ("fp32", 1e-6), ("bf16", 2.0**-7)])
def test_a_merged_directory_is_a_plain_model(place, dtype, near):
    tmp_path, model = place
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged", dtype)
    merged = load_model(tmp_path / "merged")
    for name, layer in adapters(model):
        weight = merged.get_submodule(name).weight
        assert ((weight - layer.folded()).abs() <= near * layer.folded().abs() + 1e-7).all(), name
    with pytest.raises(UserError, match="exists and is not empty"):
        merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged")
    with pytest.raises(UserError, match="is no adapter"):
        merge_adapter(str(tmp_path / "base"), tmp_path / "again")


def test_a_merged_model_has_the_dtype_of_its_base(place):
    tmp_path, _ = place
    load_model(tmp_path / "base").save(tmp_path / "base", torch.bfloat16)
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged")
    assert model_summary(tmp_path / "merged")["dtype"] == "bfloat16"


def test_patterns_of_alpha_and_ranks_of_other_programs(place):
    tmp_path, _ = place
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text()) | {"alpha_pattern": {"q_proj": 12, r"layers\.1\.mlp\.up_proj": 3}}
    path.write_text(json.dumps(config))
    scales = read_adapter(tmp_path / "adapter").scales
    assert scales["model.layers.0.self_attn.q_proj"] == 12 / 3
    assert scales["model.layers.1.mlp.up_proj"] == 1.0
    assert scales["model.layers.0.mlp.up_proj"] == 2.0
    path.write_text(json.dumps(config | {"use_rslora": True}))
    assert read_adapter(tmp_path / "adapter").scales["model.layers.0.mlp.up_proj"] == pytest.approx(6 / 3**0.5)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    narrow = {name: _first_rank(name, tensor) for name, tensor in load_file(weights).items()}
    save_file(narrow, weights)
    with pytest.raises(UserError, match=r"r is 3, and the weights of .*down_proj' have rank 1: copy both"):
        read_adapter(tmp_path / "adapter")
    path.write_text(json.dumps(config | {"rank_pattern": {"down_proj": 1}}))
    assert read_adapter(tmp_path / "adapter").scales["model.layers.0.mlp.down_proj"] == 6.0
    path.write_text(json.dumps(config | {"rank_pattern": "down_proj"}))
    with pytest.raises(UserError, match="rank_pattern is 'down_proj'"):
        read_adapter(tmp_path / "adapter")


def _first_rank(name, tensor):
    if "down_proj" not in name:
        return tensor
    return (tensor[:1] if "lora_A" in name else tensor[:, :1]).contiguous()


def test_an_adapter_without_a_tokenizer_has_its_bases(place):
    """PEFT's save_pretrained writes none."""
    tmp_path, _ = place
    for file in list((tmp_path / "adapter").iterdir()):
        if not file.name.startswith("adapter_"):
            file.unlink()
    assert model_tokenizer(tmp_path / "adapter").encode("12+3") == load_tokenizer(tmp_path / "base").encode("12+3")
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "merged")
    assert load_tokenizer(tmp_path / "merged").stops == load_tokenizer(tmp_path / "base").stops
    with pytest.raises(UserError, match="holds no tokenizer"):
        load_tokenizer(tmp_path / "adapter")


def test_a_merged_classifier_names_a_padding_that_its_tokenizer_has(place):
    """Its tokenizer is the base's, which has no padding."""
    tmp_path, model = place
    own = {**trained_tensors(model), "score.weight": torch.ones(1, 32)}
    layers = [name for name, _ in adapters(model)]
    write_adapter(tmp_path / "judge", own, SHAPE, base=tmp_path / "base", layers=layers, task="SEQ_CLS")
    merge_adapter(str(tmp_path / "judge"), tmp_path / "merged")
    pad = json.loads((tmp_path / "merged" / "config.json").read_text())["pad_token_id"]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert (theirs.pad_token_id, pad not in load_tokenizer(tmp_path / "merged").stops) == (pad, True)
    assert load_scorer(tmp_path / "judge", torch.device("cpu")).score(["1+1="], ["2"])


def test_the_layers_of_a_pattern_are_saved_by_their_whole_names(place):
    """Their last parts alone would adapt the same layers of all blocks in PEFT."""
    tmp_path, model = place
    shape = LoRAShape(rank=3, alpha=6.0, targets=r"model\.layers\.1\..*_proj")
    layers = [name for name, _ in adapters(model) if ".1." in name]
    write_adapter(tmp_path / "one", trained_tensors(model), shape, base=tmp_path / "base", layers=layers)
    assert json.loads((tmp_path / "one" / "adapter_config.json").read_text())["target_modules"] == sorted(layers)
    assert len(layers) == 7


def test_the_quantisation_of_the_base_is_in_a_file_of_its_own(place):
    """PEFT has no key for it."""
    tmp_path, model = place
    layers = [name for name, _ in adapters(model)]
    for kind in ("none", "nf4"):
        own = trained_tensors(model)
        write_adapter(tmp_path / kind, own, SHAPE, base=tmp_path / "base", layers=layers)
    note_quantization(tmp_path / "nf4", "nf4")
    assert merging_note(tmp_path / "none") == merging_note(tmp_path / "base") == ""
    assert "was trained on its base in four bits (nf4) and is added to the base as it is" in merging_note(
        tmp_path / "nf4"
    )
    assert not any("quant" in key for key in json.loads((tmp_path / "nf4" / "adapter_config.json").read_text()))


def test_the_scale_of_rslora_is_saved(place):
    tmp_path, model = place
    shape = LoRAShape(rank=3, alpha=6.0, rslora=True)
    layers = [name for name, _ in adapters(model)]
    write_adapter(tmp_path / "root", trained_tensors(model), shape, base=tmp_path / "base", layers=layers)
    assert set(read_adapter(tmp_path / "root").scales.values()) == {shape.scale}


def test_a_full_disk_leaves_no_part_of_a_merged_model(place, monkeypatch):
    tmp_path, _ = place

    def full(*args):
        raise Exception("No space left on device (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", full)
        (tmp_path / "empty").mkdir()
        for name in ("merged", "empty"):
            with pytest.raises(RunFailed, match=r"tokenizer cannot be saved .*nothing was kept"):
                merge_adapter(str(tmp_path / "adapter"), tmp_path / name)
    assert not (tmp_path / "merged").exists()
    assert list((tmp_path / "empty").iterdir()) == []
    merge_adapter(str(tmp_path / "adapter"), tmp_path / "empty")  # and it can be repeated
    assert load_model(tmp_path / "empty").config.layers == 2


def test_an_adapter_of_a_head_that_is_the_embedding_is_refused(tmp_path):
    """transformers runs this model; added to the shared matrix, the adapter would change the embedding too."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 20}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes, **heads)).save_pretrained(tmp_path / "base")
    pair = {"lm_head.lora_A": torch.ones(3, 16), "lm_head.lora_B": torch.ones(20, 3)}
    write_adapter(tmp_path / "adapter", pair, SHAPE, base=tmp_path / "base", layers=["lm_head"])
    with pytest.raises(UserError, match="adapts 'lm_head', whose matrix is that of the embedding"):
        load_model(tmp_path / "adapter")


def test_so_is_one_of_our_decoder_which_has_no_such_layer(place):
    tmp_path, _ = place
    pair = {"lm_head.lora_A": torch.ones(3, 32), "lm_head.lora_B": torch.ones(22, 3)}
    shape = {"vocab_size": 22, "layers": 1, "heads": 4, "width": 32, "context": 16}
    new_model("qwen3", seed=0, tied_head=True, **shape).save(tmp_path / "base")
    write_adapter(tmp_path / "head", pair, SHAPE, base=tmp_path / "base", layers=["lm_head"])
    with pytest.raises(UserError, match="adapts 'lm_head', whose matrix is that of the embedding"):
        load_model(tmp_path / "head")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"use_dora": True}, "use_dora is True, and only plain LoRA is read"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', and only LORA is read"),
        *[
            ({"lora_alpha": alpha}, "lora_alpha or base_model_name_or_path is missing")
            for alpha in (None, True, float("nan"), float("inf"), 10**400)
        ],
        *[
            ({"alpha_pattern": patterns}, "alpha_pattern is .* not a number for each pattern")
            for patterns in (["q_proj"], "q_proj", {"q_proj": "12"}, {"q_proj": None}, {"q_proj": float("nan")})
        ],
        ({"alpha_pattern": {"(": 3}}, r"alpha_pattern has no regular expression \(missing \)"),
        *[
            ({"alpha_pattern": {pattern: 3}}, "of alpha_pattern has more than 3 groups and repetitions")
            for pattern in (r"(\w+\.?)+!", 5000 * "(" + 5000 * ")", 30 * "a?" + 30 * "a", 20 * "(.|.)" + "!")
        ],
        *[
            ({"init_lora_weights": start}, f"init_lora_weights is '{start}', which changes the base")
            for start in ("pissa", "pissa_niter_4", "olora", "corda", "loftq")
        ],
        ({"use_rslora": "false"}, "use_rslora is 'false': expected true or false"),
        ({"r": 16}, "r is 16, and the weights of .* have rank 3"),
        ({"base_model_name_or_path": 5000 * "a"}, "needs its base model: .*name too long"),
        ({"base_model_name_or_path": "~nobody-of-that-name/x"}, "needs its base model: .*home directory"),
        (
            {"base_model_name_or_path": "/nowhere"},
            "no directory /nowhere.*; if it has moved, change base_model_name_or_path in .*adapter_config.json",
        ),
        ({"base_model_name_or_path": ""}, "names no base_model_name_or_path"),
    ],
)
def test_configs_that_are_refused(place, change, told):
    tmp_path, _ = place
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=told):
        load_model(tmp_path / "adapter")


def _without(stored, name):
    return {key: tensor for key, tensor in stored.items() if name not in key}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: _without(s, "layers.0.mlp.up_proj.lora_B"), "do not belong together"),
        (lambda s: {}, "holds no LoRA weights"),
        (lambda s: s | {"model.x.weight": torch.ones(1)}, "is not one of PEFT's"),
        (
            lambda s: s | {"base_model.model.model.norm.weight": torch.ones(2)},
            r"replaces 'model.norm.weight' whole \(modules_to_save\), and only LoRA on linear layers is read: merge",
        ),
        (
            lambda s: s | {"base_model.model.lm_head.base_layer.weight": torch.ones(2, 2)},
            "adapts 'lm_head' and holds the layer itself, and only LoRA",
        ),
        (  # alone, too: it is no damaged copy
            lambda s: {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2, 2)},
            "adapts the embedding 'model.embed_tokens', and only LoRA",
        ),
        (lambda s: s | {"base_model.model.x.lora_magnitude_vector": torch.ones(2)}, "has 'x.lora_magnitude_vector'"),
        (
            lambda s: s | {"base_model.model.score.weight": torch.ones(1, 32)},
            "of a reward model, not of a language model",
        ),
        (lambda s: {key.replace("layers.1", "layers.7"): t for key, t in s.items()}, "is it another base model"),
        (
            lambda s: {k: t[:, :8].contiguous() if "lora_A" in k else t for k, t in s.items()},
            r"is for a matrix of 32 × 8",
        ),
        (
            lambda s: {k: t[:0] if "lora_A" in k else t[:, :0].contiguous() for k, t in s.items()},
            "do not belong together",
        ),
        (lambda s: {key: t / 0 for key, t in s.items()}, "has values that are not finite"),
        (lambda s: {key: 1e30 * t for key, t in s.items()}, "has values that are not finite"),
    ],
)
def test_weights_that_are_refused(place, change, told):
    tmp_path, _ = place
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(UserError, match=told):
        load_model(tmp_path / "adapter")


def test_damaged_and_missing_files_are_named(place):
    tmp_path, _ = place
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="is damaged or truncated"):
        load_model(tmp_path / "adapter")
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        load_model(tmp_path / "adapter")
