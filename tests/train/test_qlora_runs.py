"""Runs with model.lora.quantization=nf4: every loop; sampler and trainer agree, runs go on bit for bit, merging."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.contracts.command import write_recipe
from tests.models.adapters.nf4_oracle import rounded_to_nf4
from tests.models.test_load import STORIES
from tests.train import rows_on_disk as on_disk
from tests.train.test_lora_runs import ONLINE, assert_goes_on_bit_for_bit, base, offline, rows, steps, train
from whet.algorithms.preference.preference_table import REWARDS
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.load import load_model
from whet.models.reward.reward_model import load_reward_model
from whet.recipe import read_recipe
from whet.train.explain.memory import find_model

__all__ = ["base", "rows"]  # fixtures
NF4 = {"rank": 2, "quantization": "nf4"}
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gil", "Hal", "Ida", "Jo", "Kit", "Lou")


def model_of(directory: Path, **options: Any) -> dict[str, Any]:
    return {"path": str(directory), "lora": NF4, **options}


@pytest.mark.parametrize("padding_free", [True, False])
def test_sampler_and_trainer_agree_and_the_reference_is_the_quantized_base(
    padding_free: bool, base: Path, tmp_path: Path
) -> None:
    algorithm = {"preset": "grpo", "kl": {"coefficient": 0.01}}
    run = train(tmp_path, base, model=model_of(base), algorithm=algorithm, update={"padding_free": padding_free})
    assert max(row["mismatch/max"] for row in steps(run)) < 1e-5
    kl = [row["kl"] for row in steps(run)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)  # not to the base in fp32
    assert kl[-1] > 1e-4
    assert is_adapter(run.path / "best_model")


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}},
        {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "sync", "sync_steps": 2}}},
        {"algorithm": "ppo", "critic": {"model": "separate"}, "update": {"epochs": 2, "minibatches": 2}},
    ],
    ids=["base as reference", "moving reference", "critic of its own"],
)
def test_a_run_goes_on_bit_for_bit(changes: dict[str, Any], base: Path, tmp_path: Path, whet: Whet) -> None:
    changes = {"model": model_of(base, gradient_checkpointing=True), **changes}
    assert_goes_on_bit_for_bit(tmp_path, base, whet, changes)


def test_the_first_rollouts_are_those_of_the_rounded_base(base: Path, tmp_path: Path) -> None:
    """An independent base: a model directory with the values of NF4, trained by plain LoRA."""
    model = load_model(base)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.weight"):
                weight.copy_(rounded_to_nf4(weight))
    other = tmp_path / "rounded"
    other.mkdir()
    model.save(other)
    for file in base.iterdir():
        if not (other / file.name).exists():
            (other / file.name).write_bytes(file.read_bytes())
    mine = train(tmp_path / "nf4", base, model=model_of(base))
    theirs = train(tmp_path / "plain", other, model={"path": str(other), "lora": {"rank": 2}})
    for one, two in zip(steps(mine), steps(theirs), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-3, abs=1e-6)


def test_merging_takes_the_base_as_it_is_stored(base: Path, tmp_path: Path, whet: Whet) -> None:
    run = train(tmp_path, base, model=model_of(base))
    config = json.loads((run.path / "best_model" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert not any("quant" in key for key in config)  # as PEFT writes it for a base in four bits
    adapter = run.path / "checkpoints" / "step-000004" / "model"
    result = whet("models", "merge", adapter, tmp_path / "merged", "--dtype", "fp32")
    assert (result.code, result.err.count("note: "), "in four bits (nf4)" in result.err) == (0, 1, True)
    assert "in four bits (nf4)" in whet("eval", run.path, "--examples", 2).err
    merged, stored, alone = (load_model(path) for path in (tmp_path / "merged", base, adapter))
    name = "model.layers.0.mlp.down_proj.weight"
    change = merged.state_dict()[name] - stored.state_dict()[name]
    assert torch.linalg.matrix_rank(change, atol=1e-5) <= NF4["rank"]  # s·B·A, without an error of quantisation
    assert float(change.abs().max()) > 0
    assert torch.equal(merged.state_dict()[name], alone.state_dict()[name])


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_rows_train_adapters_on_a_quantized_base(
    objective: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_HOME", str(rows / "home"))
    data = rows / "pairs.jsonl"
    if objective == "sft":
        pairs = map(json.loads, data.read_text().splitlines())
        sides = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs]
        data = on_disk.write(tmp_path / "completions.jsonl", sides)
    run = offline(rows / "start", tmp_path, objective, data, lora=NF4)
    assert all(row["grad_norm"] > 0 for row in steps(run))
    assert is_adapter(run.path / "best_model")


def test_a_reward_model_on_a_quantized_base(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_HOME", str(rows / "home"))
    name = next(name for name, row in REWARDS.items() if row.kind == "preference")
    run = offline(rows / "start", tmp_path, name, rows / "pairs.jsonl", lora=NF4)
    assert all(row["grad_norm"] > 0 for row in steps(run))
    assert float(load_reward_model(run.path / "best_model").head.weight.detach().abs().max()) > 0


@pytest.mark.skipif(not STORIES.is_dir(), reason="the stories260K checkpoint is not on this machine")
def test_a_real_model_learns_rows_in_four_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its MLP is 172 wide, no multiple of a block."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    told = [{"prompt": f"{name} was a", "completion": " model that trained in four bits."} for name in NAMES]
    data = on_disk.write(tmp_path / "rows.jsonl", told)
    run = offline(STORIES, tmp_path, "sft", data, lora={**NF4, "rank": 4}, steps=8)
    loss = [row["loss"] for row in steps(run)]
    assert loss[-1] < 0.8 * loss[0]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"lora": {"quantization": "int4"}}, "model.lora.quantization"),
        ({"lora": {"load_in_4bit": True}}, "in whet that is model.lora.quantization=nf4"),
        ({"lora": {"quantization": "nf4"}, "compile": True}, "compile is not available with lora.quantization=nf4"),
    ],
)
def test_what_is_not_available_is_refused(
    model: dict[str, Any], told: str, base: Path, tmp_path: Path, whet: Whet
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", {**ONLINE, "model": {"path": str(base), **model}})
    assert told in refused(whet, "train", recipe, "--runs", tmp_path / "runs")


def test_explain_counts_four_bits(base: Path, tmp_path: Path) -> None:
    found = {}
    for kind in ("none", "nf4"):
        recipe = {**ONLINE, "model": {"path": str(base), "lora": {"rank": 2, "quantization": kind}}}
        config = read_recipe(str(write_recipe(tmp_path / f"{kind}.yaml", recipe)), []).config
        memory, _, _ = find_model(config, None, None)  # type: ignore[arg-type]
        assert memory is not None
        found[kind] = memory.weights
    matrices = sum(p.numel() for n, p in load_model(base).named_parameters() if n.endswith("_proj.weight"))
    assert found["none"] - found["nf4"] == pytest.approx(matrices * (4 - 0.5 - 4 / 64), abs=1)
