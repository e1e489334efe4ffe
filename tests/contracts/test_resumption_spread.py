"""Contract 4 for models that are spread over processes: checkpoints hold whole tensors, whoever reads them next."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.contracts.command import Zygote, only_run, write_recipe
from tests.contracts.ranks import nothing_left_of, recipe_with_workers
from tests.contracts.test_additivity_ranks import SMOOTH, alike, online_recipe
from tests.contracts.test_resumption import differing, outcome
from tests.contracts.test_resumption_ranks import KILL, go, kill_one
from whet.models.load import load_model
from whet.runs.layout import by_step

PICKLES = {".pt", ".pth", ".bin", ".pkl", ".ckpt", ".distcp", ".metadata"}
FREE = {"micro_batch_tokens": 10**6, "max_grad_norm": 1e9}  # one pass a rank, no clipping: nothing rounds differently


def ppo(model: Path, **changes: Any) -> dict[str, Any]:
    """A policy, a critic and a reference, all of which have state in checkpoints."""
    kl = {"coefficient": 0.05, "reference": "sync", "sync_steps": 1, "ema": 0.7}
    recipe = online_recipe(model, algorithm={"preset": "ppo", "kl": kl}, **changes)
    return recipe | {"save": {"every_steps": 1, "keep": 9}}


@pytest.fixture(scope="module")
def spread(zygote: Zygote, beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that share their models."""
    place = tmp_path_factory.mktemp("spread")
    recipe = write_recipe(place / "recipe.yaml", ppo(beginner, update=FREE, distributed="fsdp2"))
    zygote.run_ranks(2, "train", recipe, "--runs", place / "runs")
    return only_run(place / "runs")


def files(run: Path) -> dict[str, bytes]:
    """Weights, moments and rollouts."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.suffix in (".safetensors", ".gz") or path.parent.name == "evals"
    }


def test_without_clipping_a_run_has_the_bytes_of_whole_models(
    zygote: Zygote, beginner: Path, spread: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", ppo(beginner, update=FREE))
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "runs")
    whole = only_run(tmp_path / "runs")
    assert "distributed" not in (whole / "config.yaml").read_text()
    names = {path.name for path in (spread / "checkpoints" / "step-000003").rglob("*.safetensors")}
    assert names == {"model.safetensors", "optimizer.safetensors", "critic.safetensors", "reference.safetensors"}
    assert differing(files(spread), files(whole)) == []
    assert alike(whole, spread) == []  # what is logged differs by the rounding of the gradient's norm


def test_adapters_on_a_spread_base_have_the_bytes_of_those_on_a_whole_one(
    zygote: Zygote, beginner: Path, tmp_path: Path
) -> None:
    """The base without them is the reference, and so is read by all ranks together."""
    changes = {"model": {"path": str(beginner), "lora": {"rank": 4}}, "update": FREE}
    recipe = write_recipe(tmp_path / "recipe.yaml", online_recipe(beginner) | changes)
    for words in ([], ["distributed=fsdp2"]):
        zygote.run_ranks(2, "train", recipe, *words, "--runs", tmp_path / "".join(["runs", *words]))
    whole, spread = only_run(tmp_path / "runs"), only_run(tmp_path / "runsdistributed=fsdp2")
    assert any("adapter_model" in name for name in files(spread))
    assert differing(files(spread), files(whole)) == []
    assert alike(whole, spread) == []


def test_nothing_is_pickled_and_transformers_loads_it(spread: Path) -> None:
    written = [path for path in spread.rglob("*") if path.is_file()]
    assert not [path for path in written if path.suffix in PICKLES]
    assert not [path for path in written if path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK")]
    for directory in (spread / "best_model", spread / "checkpoints" / "step-000003" / "model"):
        theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        tokens = torch.tensor([[1, 2, 3, 4]])
        with torch.no_grad():
            ours = load_model(directory)(tokens, torch.tensor([4]))  # type: ignore[operator]
            assert torch.allclose(theirs(tokens).logits, ours, atol=1e-4)


def go_on(zygote: Zygote, run: Path, place: Path, size: int, *words: str) -> Path:
    """The run as it was after its first step, continued by so many processes; a copy."""
    copy = place / run.name
    shutil.copytree(run, copy)
    for path in list(by_step(copy / "checkpoints").values())[1:]:
        shutil.rmtree(path)
    (copy / "final_results.json").unlink()
    resumed = ("train", copy, "--resume", *words)
    zygote.run_ranks(size, *resumed) if size > 1 else zygote.run(*resumed)
    return copy


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (1, ()),
        (2, ("distributed.sharding=none",)),
        pytest.param(4, (), marks=pytest.mark.slow),
        pytest.param(4, ("distributed.replicas=2",), marks=pytest.mark.slow),
    ],
)
def test_any_number_of_processes_goes_on(
    size: int, words: tuple[str, ...], zygote: Zygote, spread: Path, tmp_path: Path
) -> None:
    copy = go_on(zygote, spread, tmp_path, size, *words)
    assert alike(spread, copy) == []
    (lost,) = json.loads((copy / "final_results.json").read_text())["lost"]
    assert ("instead of 2 processes" if size != 2 else "distributed.sharding none instead of fsdp2") in lost


def test_whole_models_can_be_spread_later(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    """Of one process, with clipping, dynamic micro-batches and a policy alone."""
    recipe = write_recipe(tmp_path / "recipe.yaml", online_recipe(beginner) | {"save": {"every_steps": 1, "keep": 9}})
    zygote.run("train", recipe, "--runs", tmp_path / "one")
    one = only_run(tmp_path / "one")
    assert alike(one, go_on(zygote, one, tmp_path, 2, "distributed.sharding=fsdp2")) == []


def test_ranks_that_are_killed_change_no_byte(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    """In a forward pass, which gathers weights, while one writes what both gather, and in the engine's copy."""
    recipe = recipe_with_workers(beginner, tmp_path, steps=6)
    path = write_recipe(tmp_path / "rl.yaml", recipe | {"distributed": "fsdp2", "optimizer": SMOOTH})
    zygote.run_ranks(2, "train", path, "--runs", tmp_path / "whole")
    whole, root = outcome(only_run(tmp_path / "whole")), tmp_path / "runs"
    kill_one(zygote, path, root, 1, "3 whet.train.online.update:read_tokens")
    kill_one(zygote, path, root, 0, "3 whet.models.storage.tensor_file:TensorFile.write")
    kill_one(zygote, path, root, 1, "2 whet.engines.native.gathering_engine:GatheringEngine.sync")
    last = go(zygote, path, root, f"2 {KILL} 1 whet.train.online.rollouts:sample")
    assert [rank.wait() for rank in last] == [0, 0], [rank.said() for rank in last]
    assert differing(outcome(only_run(root)), whole) == []
    nothing_left_of(tmp_path.name)


def test_moments_are_whole(spread: Path) -> None:
    """Of the shapes of the weights, however these were divided."""
    last = spread / "checkpoints" / "step-000003"
    shapes = {name: tensor.shape for name, tensor in load_file(last / "model" / "model.safetensors").items()}
    moments = load_file(last / "optimizer.safetensors")
    assert {name for name in shapes if moments[f"exp_avg/{name}"].shape != shapes[name]} == set()
