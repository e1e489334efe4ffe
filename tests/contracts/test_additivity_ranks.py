"""Contract 2, over ranks: two equal one, for every algorithm, also where one of them has nothing to train on."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.contracts.additive import GROUP, VARIANTS, Scene, annotated, arrays, distance, learner_of
from tests.contracts.command import ENVIRONMENT, SUPERVISED, Zygote, online, only_run, write_recipe
from tests.contracts.fake_ranks import on_ranks
from whet.algorithms.advantages import whiten
from whet.distributed.world import World
from whet.records import Score
from whet.rollout import Group
from whet.runs.directory import RunDirectory

NEAR = 3e-6


def only(groups: list[Group], places: tuple[int, ...]) -> list[Group]:
    """All groups have equal rewards, but for these."""
    flat = [[replace(r, score=Score(reward=1.0, parts={})) for r in group] for group in groups]
    return [group if place in places else flat[place] for place, group in enumerate(groups)]


def compared(scene: Scene, size: int) -> dict[str, float]:
    """One process against `size`: the batch, the metrics, the gradient."""
    alone = learner_of(scene.policy, scene.name)
    batch, metrics = annotated(alone, scene.groups)
    whole = scene.gradient(batch)

    def work(world: World) -> Any:
        mine, said = annotated(learner_of(scene.policy, scene.name, world), scene.groups)
        return mine, said, scene.gradient(mine, world)

    parts = on_ranks(size, work)
    assert sorted(p for mine, _, _ in parts for p in mine.prompts.tolist()) == batch.prompts.tolist()
    for mine, said, gradient in parts:
        assert said == pytest.approx(metrics, rel=1e-5, abs=1e-6)
        assert distance(whole, gradient) < NEAR
        for number in mine.prompts.unique().tolist():
            ours, theirs = mine.prompts == number, batch.prompts == number
            width = mine.sequences.tokens.shape[1]
            for key, array in arrays(mine).items():
                assert torch.allclose(array[ours], arrays(batch)[key][theirs, :width], atol=1e-5), key
    return metrics


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_have_the_gradient_of_one(name: str) -> None:
    metrics = compared(Scene(name), 2)
    if ", mask_" in name:
        assert 0 < metrics["importance_correction/dropped"] < 1


@pytest.mark.parametrize(
    "name",
    [
        *("grpo", "dapo", "ppo", "ppo, shared", "remax", "reinforce_pp, kl in the reward", "grpo, sequence_mask"),
        *("ppo, dense", "to_go_leave_one_out, dense"),
    ],
)
def test_more_ranks_than_groups_change_nothing(name: str) -> None:
    compared(Scene(name), 7)


def test_statistics_of_each_rank_alone_are_caught() -> None:
    """Whitening what was whitened over everybody, over the own rows alone, is what a rank by itself would have done."""
    scene = Scene("center, whiten")
    whole = scene.gradient(scene.batch())

    def work(world: World) -> list[Tensor]:
        mine = scene.batch(world)
        return scene.gradient(replace(mine, advantages=whiten(mine.advantages, mine.sequences.mask)), world)

    assert min(distance(whole, gradient) for gradient in on_ranks(2, work)) > 1e-2


@pytest.mark.parametrize("kept", [(0, 4), (3,)])
def test_a_rank_whose_groups_were_all_dropped_takes_part(kept: tuple[int, ...]) -> None:
    scene = Scene("dapo")
    scene.groups = only(scene.groups, kept)
    assert compared(scene, 2)
    sizes = on_ranks(2, lambda world: len(scene.batch(world).prompts))
    assert sorted(sizes) == [0, GROUP * len(kept)]


# --- processes ---------------------------------------------------------------------------------------------------

SMOOTH = {"lr": 1e-3, "epsilon": 1e-4}  # with a tiny ε Adam turns rounding of a zero gradient into full steps
KL = {"coefficient": 0.05, "estimator": "k1", "place": "reward"}
FEW = {"every_steps": 3, "examples": 5, "max_tokens": 6}


def offline_recipe() -> dict[str, Any]:
    return {**SUPERVISED, "steps": 3, "batch_size": 7, "optimizer": {**SMOOTH, "lr": 1e-2}, "eval": FEW}


def online_recipe(model: Path, **changes: Any) -> dict[str, Any]:
    recipe = online(model, steps=3, optimizer=SMOOTH, eval=FEW, **changes)
    assert recipe["rollout"]["prompts"] == 5  # odd: one rank has more
    return recipe


def dapo_recipe(model: Path) -> dict[str, Any]:
    recipe = online_recipe(model, algorithm={"preset": "dapo"})
    recipe["rollout"] = {"prompts": 3, "group": 2, "max_tokens": 6, "max_resamples": 2}
    return recipe


MOVING = {**KL, "target": 0.01, "horizon": 50, "reference": "sync", "sync_steps": 1, "ema": 0.7}
RECIPES: dict[str, Any] = {
    "grpo": online_recipe,
    "offline": lambda _: offline_recipe(),
    "ppo": lambda model: online_recipe(model, algorithm={"preset": "ppo", "kl": KL}),
    "dapo": dapo_recipe,
    "reinforce_pp": lambda model: online_recipe(
        model, algorithm={"preset": "reinforce_pp", "kl": MOVING}, reward={"normalize": "running"}
    ),
    "dense": lambda model: online_recipe(
        model,
        algorithm={"preset": "grpo", "advantage": "to_go_leave_one_out", "scaling": "whiten"},
        reward={"tokens": {"mode": "plusminus", "partial_logprob": 0.05}},
    ),
}

NOT_SPREAD = {"weights/change"}  # logged where every rank has all weights


def alike(one: Path, two: Path) -> list[str]:
    """What differs between two finished runs, beyond rounding."""
    wrong = []
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, two)]
    for first, second in zip(*lines, strict=True):
        assert first.keys() ^ second.keys() <= NOT_SPREAD
        wrong += [
            f"{name} of step {first['step']}: {first[name]} and {second[name]}"
            for name in first.keys() & second.keys()
            if first[name] != pytest.approx(second[name], rel=1e-4, abs=1e-5)
        ]
    last = [run / "checkpoints" / "step-000003" for run in (one, two)]
    names = [sorted(str(p.relative_to(where)) for p in where.rglob("*.safetensors")) for where in last]
    assert names[0] == names[1]
    for name in names[0]:
        tensors = [load_file(where / name) for where in last]
        assert tensors[0].keys() == tensors[1].keys()
        wrong += [
            f"{name}: {key}" for key in tensors[0] if not torch.allclose(tensors[0][key], tensors[1][key], atol=1e-5)
        ]
    kept = [json.loads((where / "state.json").read_text()) for where in last]
    if "memory" in kept[0].get("kept", {}):
        one_memory, two_memory = (state["kept"]["memory"] for state in kept)
        wrong += [key for key in one_memory if one_memory[key] != pytest.approx(two_memory[key], rel=1e-4, abs=1e-5)]
    return wrong


def ids(run: Path) -> list[str]:
    return [row["id"] + row["text"] for row in RunDirectory.open(run, is_writer=False).rollouts(2)]


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_equal_one(name: str, zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", RECIPES[name](beginner))
    zygote.run("train", recipe, "--runs", tmp_path / "one")
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "two")
    one, two = only_run(tmp_path / "one"), only_run(tmp_path / "two")
    assert json.loads((two / "final_results.json").read_text())["machine"]["processes"] == 2
    assert alike(one, two) == []
    if name != "offline":
        assert ids(one) == ids(two)  # the rollouts stand in the order of one process
    if name == "dapo":
        rows = RunDirectory.open(two, is_writer=False).metrics()[1:]
        assert max(row["groups/drawn"] for row in rows) > 3  # some step drew again
        assert any("loss" in row for row in rows)
    if name in ("grpo", "offline"):
        zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "averaged", hooks={"average_over_ranks": ""})
        caught = alike(one, only_run(tmp_path / "averaged"))
        assert any("grad_norm of step 1" in line for line in caught), caught
        assert any("model.safetensors" in line for line in caught), caught


@pytest.mark.slow
def test_torchrun_starts_two_ranks(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", online_recipe(beginner))
    zygote.run("train", recipe, "--runs", tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "whet"]
    command = [*torchrun, "train", str(recipe), "--runs", str(tmp_path / "two")]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert alike(only_run(tmp_path / "one"), only_run(tmp_path / "two")) == []
