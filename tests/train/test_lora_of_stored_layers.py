"""LoRA for families that store several matrices as one: files against the formula, resuming, targets, other programs.

The oracle adds s·B·A to the tensors of the base's file, as PEFT's files define it, and knows nothing of parts.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, GemmaForCausalLM

from tests.contracts.command import write_recipe
from tests.models.adapters.test_lora import read
from tests.small import small_model
from tests.train.test_lora_runs import ONLINE, assert_goes_on_bit_for_bit, train
from whet.config.model_config import ModelConfig
from whet.errors import UserError
from whet.models.adapters.adapter_targets import chosen
from whet.models.adapters.lora import adapters, trained_tensors
from whet.models.adapters.peft_files import PREFIX, attach_adapter_files, read_adapter
from whet.models.load import load_model, new_model, own_layers
from whet.models.merging import merge_adapter
from whet.models.reward.reward_model import RewardModel, load_reward_model, new_reward_model
from whet.models.reward.settings import RewardSettings, write_settings
from whet.models.reward.shared_base import reward_model_on
from whet.models.sizes.weight_counts import adapter_weights, layer_names
from whet.models.text.tokenizers import character_tokenizer, load_tokenizer, with_padding
from whet.recipe import read_recipe
from whet.tasks.loading import guarded_task
from whet.train.explain.memory import find_model
from whet.train.setup.build import Parts
from whet.train.setup.lora_setup import Adapter, attach_adapter

FAMILIES = ("phi3", "gpt2")
PHI3, GPT2 = "model.layers.0.", "transformer.h.0."
SOME = ["k_proj", "up_proj", "o_proj"]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base of every family; Phi-3 with fewer keys than queries."""
    found = {}
    for family in FAMILIES:
        directory: Path = tmp_path_factory.mktemp(family)
        _, tokenizer = small_model(family)
        shape = {"layers": 2, "heads": 4, "kv_heads": 2 if family == "phi3" else 4, "width": 32, "context": 64}
        model = new_model(family, seed=1, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos, **shape)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3.0)
        model.save(directory)
        tokenizer.save(directory)
        found[family] = directory
    return found


def adapted(model: torch.nn.Module, base: Path, **lora: Any) -> Adapter:
    """Gives a loaded model adapters that are not zero."""
    config = ModelConfig.model_validate({"path": str(base), "lora": {"rank": 3, "alpha": 6.0, **lora}})
    adapter = attach_adapter(config, model, torch.device("cpu"), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, 0.3, generator=generator)
    assert adapter is not None
    return adapter


def applied(base: Path, adapter: Path, to: Path, scales: dict[str, float]) -> torch.nn.Module:
    """The base with every stored matrix changed by the formula; `scales`: by the end of its name."""
    weights = load_file(base / "model.safetensors")
    stored = load_file(adapter / "adapter_model.safetensors")
    is_transposed = json.loads((adapter / "adapter_config.json").read_text())["fan_in_fan_out"]
    for name in [name for name in stored if name.endswith("lora_A.weight")]:
        layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        scale = next(scale for end, scale in scales.items() if layer.endswith(end))
        change = scale * stored[name.replace("lora_A", "lora_B")] @ stored[name]
        weights[f"{layer}.weight"] += change.t() if is_transposed else change
    to.mkdir()
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_bytes((base / "config.json").read_bytes())
    model = load_model(to)
    assert isinstance(model, torch.nn.Module)
    return model


def assert_same(one: Any, other: Any) -> None:
    assert (read(one, packed=False) - read(other, packed=False)).abs().max() < 1e-4


@pytest.mark.parametrize("lora", [{}, {"targets": SOME}, {"rslora": True}], ids=["all", "some", "rslora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_is_the_formula_and_is_read_back(
    family: str, lora: dict[str, Any], bases: dict[str, Path], tmp_path: Path
) -> None:
    base = bases[family]
    model: Any = load_model(base)
    adapter = adapted(model, base, **lora)
    adapter.save(model, tmp_path / "saved")
    expected = applied(base, tmp_path / "saved", tmp_path / "applied", {"": 6 / 3**0.5 if lora.get("rslora") else 2.0})
    assert_same(expected, model)
    assert_same(load_model(tmp_path / "saved"), model)
    found, own = adapter.read(model, tmp_path / "saved"), trained_tensors(model)
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    load_tokenizer(base).save(tmp_path / "saved")
    merge_adapter(str(tmp_path / "saved"), tmp_path / "merged")
    assert_same(load_model(tmp_path / "merged"), model)


def config_of(base: Path, to: Path, **lora: Any) -> dict[str, Any]:
    model: Any = load_model(base)
    adapted(model, base, **lora).save(model, to)
    found: dict[str, Any] = json.loads((to / "adapter_config.json").read_text())
    return found


def test_ranks_and_alphas_are_sums(bases: dict[str, Path], tmp_path: Path) -> None:
    whole = config_of(bases["phi3"], tmp_path / "whole")
    assert (whole["r"], whole["lora_alpha"], whole["fan_in_fan_out"]) == (9, 18.0, False)
    assert whole["rank_pattern"] == {"gate_up_proj": 6, "o_proj": 3, "down_proj": 3}
    assert whole["alpha_pattern"] == {"gate_up_proj": 12.0, "o_proj": 6.0, "down_proj": 6.0}
    assert whole["target_modules"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    root = config_of(bases["phi3"], tmp_path / "root", rslora=True, targets=["q_proj", "v_proj", "o_proj"])
    assert (root["r"], root["lora_alpha"]) == (6, 6 * 2**0.5)
    assert (root["rank_pattern"], root["alpha_pattern"]) == ({"o_proj": 3}, {"o_proj": 6.0})
    assert root["target_modules"] == ["o_proj", "qkv_proj"]
    stored = load_file(tmp_path / "root" / "adapter_model.safetensors")
    b = stored[f"{PREFIX}{PHI3}self_attn.qkv_proj.lora_B.weight"]  # 32 rows of queries, 16 of keys, 16 of values
    assert b.shape == (64, 6)
    assert b[:32, :3].all()
    assert b[48:, 3:].all()
    assert not any(zeros.any() for zeros in (b[:32, 3:], b[32:48], b[48:, :3]))


def test_names_that_others_end_in_too_are_whole(bases: dict[str, Path], tmp_path: Path) -> None:
    """GPT-2 calls two layers of a block c_proj; and layers of one name may have different ranks."""
    one = config_of(bases["gpt2"], tmp_path / "one", targets=["o_proj"])
    assert one["fan_in_fan_out"] is True
    assert one["target_modules"] == [f"transformer.h.{layer}.attn.c_proj" for layer in (0, 1)]
    assert "rank_pattern" not in one
    two = config_of(bases["phi3"], tmp_path / "two", targets=["layers.0.self_attn.q_proj", "v_proj"])
    assert two["target_modules"] == ["qkv_proj"]
    assert two["rank_pattern"] == {r"model\.layers\.1\.self_attn\.qkv_proj": 3}
    scales = read_adapter(tmp_path / "two").scales
    assert set(scales.values()) == {2.0}


def peft_like(base: Path, to: Path, layers: dict[str, tuple[int, int]], **changes: Any) -> Path:
    """An adapter as other programs write it: B of a stored matrix has no zeros."""
    to.mkdir()
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for layer, (rows, columns) in layers.items():
        tensors[f"{PREFIX}{layer}.lora_A.weight"] = torch.randn(2, columns, generator=generator) * 0.3
        tensors[f"{PREFIX}{layer}.lora_B.weight"] = torch.randn(rows, 2, generator=generator) * 0.3
    save_file(tensors, to / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 2, **changes}
    (to / "adapter_config.json").write_text(json.dumps(config))
    return to


LAYERS = {
    "phi3": {f"{PHI3}self_attn.qkv_proj": (64, 32), f"{PHI3}mlp.gate_up_proj": (176, 32)},
    "gpt2": {f"{GPT2}attn.c_attn": (96, 32), f"{GPT2}attn.c_proj": (32, 32), f"{GPT2}mlp.c_proj": (32, 128)},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_of_another_program_is_merged_and_attached(
    family: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    base, patterns = bases[family], {"qkv_proj": 3, "mlp.c_proj": 3}
    changes = {"fan_in_fan_out": family == "gpt2", "alpha_pattern": patterns}
    directory = peft_like(base, tmp_path / "theirs", LAYERS[family], **changes)
    scales = {"qkv_proj": 1.5, "mlp.c_proj": 1.5, "": 1.0}
    expected = applied(base, directory, tmp_path / "applied", scales)
    assert_same(load_model(directory), expected)
    model: Any = load_model(base)
    attach_adapter_files(model, own_layers(read_adapter(directory), model))
    assert len(list(adapters(model))) == 5
    assert_same(model, expected)


@pytest.mark.parametrize(
    ("layer", "size", "told"),
    [
        ("self_attn.q_proj", (32, 32), "which .* stores in one matrix with others: is it another base model"),
        ("self_attn.qkv_proj", (96, 32), r"'model.layers.0.self_attn.qkv_proj' is for .* 96 × 32, .* has 64 × 32"),
        ("self_attn.qkv_proj", (64, 31), "is for a matrix of 32 × 31"),
        ("self_attn.c_attn", (96, 32), "has not: is it another base model"),
    ],
)
def test_adapters_of_other_bases_are_refused(
    layer: str, size: tuple[int, int], told: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        load_model(peft_like(bases["phi3"], tmp_path / "theirs", {PHI3 + layer: size}))


def test_values_that_are_not_finite_are_refused_where_b_is_zero(bases: dict[str, Path], tmp_path: Path) -> None:
    directory = peft_like(bases["phi3"], tmp_path / "theirs", {f"{PHI3}self_attn.qkv_proj": (64, 32)})
    tensors = load_file(directory / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        tensor.fill_(torch.nan if "lora_A" in name else 0.0)
    save_file(tensors, directory / "adapter_model.safetensors")
    with pytest.raises(UserError, match="not finite"):
        load_model(directory)


def test_another_rank_than_the_runs_is_not_resumed(bases: dict[str, Path], tmp_path: Path) -> None:
    base = bases["phi3"]
    model: Any = load_model(base)
    adapted(model, base, rank=2).save(model, tmp_path / "saved")
    other: Any = load_model(base)
    parts = Parts.__new__(Parts)
    object.__setattr__(parts, "adapter", adapted(other, base, rank=3))
    object.__setattr__(parts, "policy", other)
    with pytest.raises(UserError, match="another than the run's config describes"):
        parts.restore_model(tmp_path / "saved")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reward_model_is_saved_and_shares_the_base(family: str, bases: dict[str, Path], tmp_path: Path) -> None:
    base, settings = bases[family], RewardSettings(kind="process", classes=3)
    tokenizer, pad = with_padding(load_tokenizer(base))
    model = new_reward_model(load_model(base), settings, seed=1, pad=pad)
    adapter = adapted(model, base)
    adapter.save(model, tmp_path)
    write_settings(tmp_path, settings)
    tokenizer.save(tmp_path)
    head = "classifier" if family == "gpt2" else "score"  # as transformers calls it in token classifiers
    assert set(read_adapter(tmp_path).others) == {f"{head}.weight", f"{head}.bias"}
    assert adapter.read(model, tmp_path).keys() == trained_tensors(model).keys()
    policy: Any = load_model(base)
    adapted(policy, base)
    tokens, places = torch.arange(6)[None], torch.ones(1, 6, dtype=torch.bool)

    def scores(one: RewardModel) -> torch.Tensor:
        return one.scores(tokens, torch.tensor([6]), places)

    shared = reward_model_on(policy, tmp_path)
    for other in (load_reward_model(tmp_path), shared):
        assert (scores(other) - scores(model)).abs().max() < 1e-5
    # What is zero in the joined B is not kept: the same ranks as in training.
    assert {len(layer.lora_A) for _, layer in adapters(shared.trunk)} == {3}


def test_the_head_of_transformers_classifier_is_trained_and_saved(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8, "vocab_size": 20}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    GemmaForCausalLM(GemmaConfig(**sizes, **heads)).save_pretrained(tmp_path / "base")
    settings = RewardSettings(kind="preference")
    model = new_reward_model(load_model(tmp_path / "base"), settings, seed=1, pad=1)
    adapter = adapted(model, tmp_path / "base")
    assert model.head.weight.requires_grad
    adapter.save(model, tmp_path / "saved")
    assert list(read_adapter(tmp_path / "saved").others) == ["score.weight"]
    assert adapter.read(model, tmp_path / "saved").keys() == trained_tensors(model).keys()


Q, K, V = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
NAMES = [f"model.layers.{layer}.{name}" for layer in (0, 1) for name in (Q, K, V, "mlp.gate_proj", "mlp.up_proj")]


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (["qkv_proj"], [Q, K, V]),
        ("qkv_proj", [Q, K, V]),
        (["gate_up_proj", "v_proj"], [V, "mlp.gate_proj", "mlp.up_proj"]),
        (["c_fc"], ["mlp.up_proj"]),
    ],
)
def test_names_of_the_checkpoint_stand_for_their_parts(targets: Any, found: list[str]) -> None:
    assert chosen(NAMES, targets) == [name for name in NAMES if name.endswith(tuple(found))]
    assert chosen(NAMES, ["0.self_attn.qkv_proj"]) == NAMES[:3]
    assert chosen(["h.0.attn.c_attn", *NAMES], ["c_attn", "v_proj"])[0] == "h.0.attn.c_attn"  # of transformers


def test_an_expression_has_whets_names() -> None:
    told = "names 'qkv_proj', and a regular expression is matched with whet's names .*: write q_proj, k_proj, v_proj"
    with pytest.raises(UserError, match=told):
        chosen(NAMES, r".*\.(qkv_proj|up_proj)")
    theirs = ["h.0.qkv_proj", "h.0.o_proj"]
    assert chosen(theirs, r".*\.(qkv_proj|o_proj)") == theirs


@pytest.fixture(scope="module")
def sorters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base of every family with the alphabet of the task."""
    found = {}
    for family in FAMILIES:
        directory: Path = tmp_path_factory.mktemp("sorters") / family
        directory.mkdir()
        tokenizer = character_tokenizer(guarded_task("sorting", {"level": 1}).alphabet)
        shape = {"layers": 2, "heads": 4, "width": 32, "context": 16}
        new_model(family, seed=1, vocab_size=tokenizer.vocab_size, eos=tokenizer.eos, **shape).save(directory)
        tokenizer.save(directory)
        found[family] = directory
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_with_a_critic_goes_on_bit_for_bit(
    family: str, sorters: dict[str, Path], tmp_path: Path, whet: Any
) -> None:
    changes = {"algorithm": "ppo", "critic": {"model": "separate"}, "update": {"epochs": 2, "minibatches": 2}}
    assert_goes_on_bit_for_bit(tmp_path, sorters[family], whet, changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_trainer_agree_and_the_plan_counts_the_parts(
    family: str, sorters: dict[str, Path], tmp_path: Path
) -> None:
    base, target = sorters[family], {"phi3": "qkv_proj", "gpt2": "c_attn"}[family]
    model = {"path": str(base), "lora": {"rank": 2, "targets": [target]}}
    run = train(tmp_path, base, model=model, steps=2)
    assert max(row["mismatch/max"] for row in run.metrics() if row["step"] > 0) < 1e-5
    config: Any = read_recipe(str(write_recipe(tmp_path / "one.yaml", {**ONLINE, "model": model})), []).config
    memory, _, _ = find_model(config, None, None)  # type: ignore[arg-type]
    assert memory is not None
    policy: Any = load_model(base)
    count = adapter_weights(policy.config, 2, chosen(layer_names(policy.config), [target]))
    assert f"{count:,} trained" in memory.about
    assert count == 2 * 2 * 3 * (32 + 32)  # layers, rank, parts, rows and columns
