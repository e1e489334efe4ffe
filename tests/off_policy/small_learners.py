"""Small runs of loop off_policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.control.small_runs import PROBES
from whet.cli.progress import SilentProgress
from whet.config.control.off_policy import OffPolicyConfig
from whet.distributed.world import World
from whet.recipe import Recipe
from whet.runs.directory import RunDirectory
from whet.train.off_policy.interaction import interact
from whet.train.off_policy.off_policy_learner import Learner, build_learner
from whet.train.start import start_run

SAC: dict[str, Any] = {"preset": "sac", "gamma": 0.5, "tau": 0.05, "entropy_coefficient": 0.001}
TD3: dict[str, Any] = {"preset": "td3", "gamma": 0.5, "tau": 0.05, "target_noise": 0.05, "action_noise": 0.3}
REACH = {"name": f"{PROBES}:Reach", "max_steps": 10}


def off_policy_config(where: str, /, **keys: Any) -> OffPolicyConfig:
    """A config with SAC on a probe with continuous actions or a registered environment, unless the keys say else."""
    usual: dict[str, Any] = {
        "environment": where if "-" in where else {"name": f"{PROBES}:{where}", "boxed": True},
        "steps": 1,
        "algorithm": SAC,
        "policy": {"widths": [32]},
        "replay": {"size": 1000, "learning_starts": 64},
        "rollout": {"environments": 1, "length": 400},
        "update": {"batch_size": 64},
        "optimizer": {"lr": 1e-2},
        "eval": {"every_steps": 0},
        "track": [],
    }
    return OffPolicyConfig.model_validate({**usual, **keys})


def built(config: OffPolicyConfig) -> Learner:
    return build_learner(config, World.init("cpu"))


def learned(config: OffPolicyConfig) -> Learner:
    """What a config builds, after its steps; without a run directory."""
    learner = built(config)
    for step in range(1, config.steps + 1):
        interact(config, learner, step)
    return learner


def run_of(config: OffPolicyConfig, path: Path) -> RunDirectory:
    """A finished run."""
    recipe = Recipe(name="off_policy", config=config, written=config.model_dump(mode="json"))
    start_run(recipe, path.parent, lambda *_: SilentProgress(), path=path)
    return RunDirectory.open(path, is_writer=False)
