"""Steps a second of loop control with a batched environment, on the device that is there: `python -m bench.control`.

Copies of `torch:CartPole` collect and learn on the same device: PPO with one pass over each rollout. For every number
of copies the median of some steps after the first ones, with and without the updates.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.machine import machine
from bench.results import RESULTS, write_result
from whet.config.control import ControlConfig
from whet.distributed.world import World
from whet.train.control.annotate import annotate
from whet.train.control.parts import build_control
from whet.train.control.update import update

ENVIRONMENT = "torch:CartPole"
COPIES = {"cpu": (64, 1024, 4096), "cuda": (1024, 4096, 16384, 65536)}
LENGTH = 32  # steps of a copy in a rollout
MINIBATCHES = 4  # of a rollout
WARM = 3  # steps before the clock
PHASES = ("collect", "annotate", "update")


def recipe(copies: int, device: str) -> dict[str, Any]:
    """PPO on a rollout of this many copies."""
    return {
        "environment": ENVIRONMENT,
        "steps": 1000,
        "algorithm": {"preset": "ppo", "gae": {"gamma": 0.98, "lam": 0.8}},
        "rollout": {"environments": copies, "length": LENGTH},
        "update": {"minibatch": copies * LENGTH // MINIBATCHES},
        "critic": {"coefficient": 1.0},
        "optimizer": {"lr": 1e-3},
        "track": [],
        "device": device,
    }


def measured(copies: int, device: str, steps: int) -> dict[str, Any]:
    """Seconds of every phase of every step, and steps of environments a second."""
    config = ControlConfig.model_validate(recipe(copies, device))
    control = build_control(config, World.init(device))
    seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for step in range(1, WARM + steps + 1):
        marks = [_now(device)]
        rollout = control.collector.collect(step)
        marks.append(_now(device))
        batch, _ = annotate(control.algorithm, control.policy, rollout, 1, control.scale)
        marks.append(_now(device))
        update(config, control.algorithm, control.policy, control.parts.optimizer, batch, step=step)
        marks.append(_now(device))
        if step > WARM:
            for phase, before, after in zip(PHASES, marks, marks[1:], strict=False):
                seconds[phase].append(after - before)
    whole = statistics.median(map(sum, zip(*seconds.values(), strict=True)))
    return {
        "copies": copies,
        "seconds": {phase: statistics.median(some) for phase, some in seconds.items()},
        "collected_a_second": copies * LENGTH / statistics.median(seconds["collect"]),
        "steps_a_second": copies * LENGTH / whole,
    }


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.control")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--copies", help="comma-separated, in place of those of the device")
    parser.add_argument("--steps", type=int, default=20, help="of the loop, that are measured")
    parser.add_argument("--quick", action="store_true", help="proves that it runs; no result")
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the result")
    asked = parser.parse_args(arguments)
    counts = [int(one) for one in asked.copies.split(",")] if asked.copies else list(COPIES[asked.device])
    rows = []
    for copies in counts:
        row = measured(copies, asked.device, asked.steps)
        rows.append(row)
        print(f"{copies:,} copies: {row['steps_a_second']:,.0f} steps a second", flush=True)
    content = {
        "what": "control-quick" if asked.quick else "control",
        "title": f"{ENVIRONMENT}, PPO, {LENGTH} steps of each copy in a rollout",
        "quick": asked.quick,
        "workload": {"recipe": recipe(counts[0], asked.device), "copies": counts, "steps": asked.steps},
        "sides": {"whet": rows},
    }
    print(write_result(asked.to, machine(asked.device), content))


if __name__ == "__main__":
    main(sys.argv[1:])
