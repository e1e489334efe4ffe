"""Contract 4 for off-policy learning: killed and resumed equals never stopped, with the replay buffer of then."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import Zygote, only_run, write_recipe
from tests.contracts.test_resumption import differing, go, outcome
from tests.contracts.test_resumption_control import logged

STEPS = 12
PROBES = Path(__file__).parents[1] / "control" / "probes.py"
REACH: dict[str, Any] = {
    "loop": "off_policy",
    "environment": {"name": f"{PROBES}:Reach", "max_steps": 7},
    "steps": STEPS,
    "seed": 4,
    "policy": {"widths": [16]},
    "normalize": {"observations": True},
    "rollout": {"environments": 2, "length": 20},
    "update": {"batch_size": 16, "every_steps": 3, "gradient_steps": 2},
    "optimizer": {"lr": 5e-3, "schedule": "linear"},
    "eval": {"every_steps": 4, "episodes": 5},
    "save": {"every_steps": 3, "keep": 2},
    "track": [],
}
# The buffer is full long before the end, so blocks are begun, filled, linked and forgotten.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sac": {"algorithm": "sac", "replay": {"size": 80, "learning_starts": 30, "hindsight": {"goals": 4}}},
    "td3": {"algorithm": "td3", "replay": {"size": 200, "learning_starts": 30}, "save": {"every_steps": 3, "keep": 1}},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kills_change_no_byte(zygote: Zygote, algorithm: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "off_policy.yaml", {**REACH, **ALGORITHMS[algorithm]})
    zygote.run("train", recipe, "--runs", tmp_path / "whole")
    whole = outcome(only_run(tmp_path / "whole"))
    assert any("replay-" in name for name in whole)
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


def test_checkpoints_share_the_full_blocks_of_the_buffer(zygote: Zygote, tmp_path: Path) -> None:
    """The block that was full at the last checkpoint but one is one file on disk for both."""
    keys = {**REACH, **ALGORITHMS["sac"], "steps": 11, "save": {"every_steps": 1, "keep": 2}}
    zygote.run("train", write_recipe(tmp_path / "off_policy.yaml", keys), "--runs", tmp_path / "runs")
    older, newer = sorted((only_run(tmp_path / "runs") / "checkpoints").iterdir())
    assert [path.name for path in sorted(older.glob("replay-*"))] == ["replay-00004.safetensors"]
    assert (newer / "replay-00004.safetensors").samefile(older / "replay-00004.safetensors")
    assert [path.name for path in sorted(newer.glob("replay-*"))][1:] == ["replay-00005.safetensors"]
