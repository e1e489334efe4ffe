"""Small runs of loop control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.cli.progress import SilentProgress
from whet.config.control import ControlConfig
from whet.distributed.world import World
from whet.recipe import Recipe
from whet.runs.directory import RunDirectory
from whet.train.control.annotate import annotate
from whet.train.control.parts import Control, build_control
from whet.train.control.update import update
from whet.train.start import start_run

PROBES = str(Path(__file__).with_name("probes.py"))
PPO: dict[str, Any] = {"preset": "ppo", "gae": {"gamma": 0.5, "lam": 0.95}}


def control_config(where: str, /, **keys: Any) -> ControlConfig:
    """A config with PPO on a probe or a registered environment, unless the keys say otherwise."""
    name = where if "-" in where else f"{PROBES}:{where}"
    usual: dict[str, Any] = {
        "environment": name,
        "steps": 40,
        "algorithm": PPO,
        "rollout": {"environments": 4, "length": 32},
        "update": {"epochs": 4, "minibatch": 64},
        "policy": {"widths": [16]},
        "critic": {"coefficient": 1.0},
        "optimizer": {"lr": 1e-2},
        "eval": {"every_steps": 0},
        "track": [],
    }
    return ControlConfig.model_validate({**usual, **keys})


def built(config: ControlConfig) -> Control:
    return build_control(config, World.init("cpu"))


def learned(config: ControlConfig) -> Control:
    """What a config builds, after its steps; without a run directory."""
    control = built(config)
    for step in range(1, config.steps + 1):
        one_step(control, config, step)
    return control


def one_step(control: Control, config: ControlConfig, step: int) -> dict[str, float]:
    rollout = control.collector.collect(step)
    batch, metrics = annotate(control.algorithm, control.policy, rollout, config.rollout.group, control.scale)
    metrics |= update(config, control.algorithm, control.policy, control.parts.optimizer, batch, step=step)
    control.observe(rollout)
    return metrics


def run_of(config: ControlConfig, path: Path) -> RunDirectory:
    """A finished run."""
    written = config.model_dump(mode="json")
    start_run(
        Recipe(name="control", config=config, written=written), path.parent, lambda *_: SilentProgress(), path=path
    )
    return RunDirectory.open(path, is_writer=False)
