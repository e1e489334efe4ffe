"""A model with latent attention through `whet train`: sampler and trainer agree, and a run goes on bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.contracts.command import write_recipe
from whet.models.decoder.decoder import Decoder
from whet.models.layers.part_shapes import LatentShape
from whet.models.load import load_model
from whet.runs.directory import RunDirectory

NEW = {"family": "deepseek_v3", "layers": 2, "heads": 2, "width": 32, "context": 16}
RECIPE: dict[str, Any] = {
    "steps": 4,
    "seed": 5,
    "model": {"new": {**NEW, "latent": {"kv_rank": 12, "value_dim": 20}}},
    "task": {"name": "sorting", "level": 1},
    "cold_start": {"steps": 30, "batch_size": 32, "lr": 1e-2},
    "algorithm": "grpo",
    "rollout": {"prompts": 8, "group": 4, "max_tokens": 6},
    "optimizer": {"lr": 1e-3},
    "eval": {"every_steps": 4, "examples": 9, "max_tokens": 6},
    "save": {"every_steps": 2, "keep": 2},
    "track": [],
    "device": "cpu",
}


def train(whet: Whet, tmp_path: Path, name: str, **changes: Any) -> RunDirectory:
    recipe = write_recipe(tmp_path / f"{name}.yaml", {**RECIPE, **changes})
    result = whet("train", recipe, "--runs", tmp_path / name)
    assert result.code == 0, result.err
    (path,) = (tmp_path / name).iterdir()
    return RunDirectory.open(path, is_writer=False)


def weights(run: RunDirectory) -> bytes:
    checkpoint = run.latest()
    assert checkpoint is not None
    return (checkpoint.path / "model" / "model.safetensors").read_bytes()


def test_a_run_agrees_with_its_sampler_and_goes_on_bit_for_bit(whet: Whet, tmp_path: Path) -> None:
    whole = train(whet, tmp_path, "whole")
    steps = [row for row in whole.metrics() if row["step"] > 0]
    assert len(steps) == 4
    assert all(row["mismatch/max"] < 1e-5 and row["grad_norm"] > 0 for row in steps)
    model = load_model(whole.path / "best_model")
    assert isinstance(model, Decoder)
    assert model.config.latent == LatentShape(q_rank=8, kv_rank=12, nope_dim=16, rope_dim=8, value_dim=20)

    half = train(whet, tmp_path, "half", steps=2)
    before = weights(half)
    resumed = whet("train", "--resume", half.path, "steps=4")
    assert resumed.code == 0, resumed.err
    assert weights(RunDirectory.open(half.path, is_writer=False)) == weights(whole) != before


def test_a_supervised_model_learns(whet: Whet, tmp_path: Path) -> None:
    """To write three of six letters backwards: 3/4 · ln 6 = 1.34 nats a token for a model that sees no other token."""
    new = {"family": "deepseek_v2", "layers": 2, "heads": 2, "width": 64, "context": 16, "latent": {"q_rank": 0}}
    recipe = {
        **{key: RECIPE[key] for key in ("seed", "save", "track", "device")},
        "loop": "offline",
        "steps": 80,
        "model": {"new": new},
        "task": {"name": "reverse", "level": 1, "letters": 6},
        "objective": "sft",
        "batch_size": 32,
        "optimizer": {"lr": 1e-2},
        "eval": {"every_steps": 80, "examples": 60, "max_tokens": 6},
    }
    result = whet("train", write_recipe(tmp_path / "recipe.yaml", recipe), "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (path,) = (tmp_path / "runs").iterdir()
    assert RunDirectory.open(path, is_writer=False).metrics()[-1]["eval/loss"] < 0.5


def test_explain_counts_the_cache_in_latents(whet: Whet, tmp_path: Path) -> None:
    """2 layers in bf16: 12 + 8 numbers a token; 2 heads of 16 + 8 and 20 would be 88."""
    recipe = write_recipe(tmp_path / "recipe.yaml", RECIPE)
    model = json.loads(whet("explain", recipe, "--json").out)["model"]
    assert (model["kv_per_token"], model["kv_of_all_heads"]) == (2 * 2 * 20, 2 * 2 * 88)
    page = whet("explain", recipe).out
    assert "80 bytes a token in bf16; keys and values of every head would take 352" in page


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (
            {"family": "llama", "latent": {"kv_rank": 8}},
            "model.new: llama has no latent attention: remove latent.kv_rank",
        ),
        ({**NEW, "latent": {"rope_dim": 3}}, "model.new: rope_dim is 3: rotary positions need an even one"),
    ],
)
def test_wrong_latents_are_refused_before_training(
    whet: Whet, tmp_path: Path, new: dict[str, Any], message: str
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", {**RECIPE, "model": {"new": new}})
    for command in (("train", recipe, "--runs", tmp_path / "runs"), ("explain", recipe)):
        assert message in refused(whet, *command)
