"""Contract 4 for environments: killed in the middle of episodes and resumed equals never stopped."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import Zygote, only_run, write_recipe
from tests.contracts.test_resumption import differing, go, outcome

STEPS = 12
CARTPOLE: dict[str, Any] = {
    "loop": "control",
    "environment": "CartPole-v1",
    "steps": STEPS,
    "seed": 4,
    "algorithm": {"preset": "ppo", "gae": {"gamma": 0.98}},
    "policy": {"widths": [16]},
    "normalize": {"observations": True, "rewards": True},
    "rollout": {"environments": 3, "length": 24},
    "update": {"epochs": 2, "minibatch": 16},
    "optimizer": {"lr": 5e-3, "schedule": "linear"},
    "eval": {"every_steps": 4, "episodes": 5},
    "save": {"every_steps": 3, "keep": 2},
    "track": [],
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "control.yaml", CARTPOLE)


@pytest.fixture(scope="module")
def whole(zygote: Zygote, recipe: Path) -> dict[str, bytes]:
    zygote.run("train", recipe, "--runs", recipe.parent / "whole")
    return outcome(only_run(recipe.parent / "whole"))


def test_kills_change_no_byte(zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    rng, root = random.Random(5), tmp_path / "runs"
    for goal in (4, 8):
        process = go(zygote, recipe, root)
        process.until(lambda goal=goal: logged(root) >= goal, f"step {goal}")
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        process.wait()
    last = go(zygote, recipe, root)
    assert last.wait() == 0, last.said()
    assert differing(outcome(only_run(root)), whole) == []


def test_more_steps_go_on_with_the_episodes_under_way(
    zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """A run of fewer steps, extended; with a constant rate nothing else depends on their number."""
    constant = write_recipe(tmp_path / "constant.yaml", {**CARTPOLE, "optimizer": {"lr": 5e-3}, "save": {"keep": 1}})
    zygote.run("train", constant, "--runs", tmp_path / "once")
    zygote.run("train", constant, "--runs", tmp_path / "twice", "steps=8")
    zygote.run("train", only_run(tmp_path / "twice"), "--resume", f"steps={STEPS}")
    once, twice = (outcome(only_run(tmp_path / name)) for name in ("once", "twice"))
    changed = differing(once, twice)
    assert [name for name in changed if not name.endswith("config.yaml")] == []


def logged(root: Path) -> int:
    files = list(root.glob("*/metrics.jsonl"))
    return files[0].read_bytes().count(b"\n") - 1 if files else -1
