"""Four models on one GPU: `python -m bench.offload` measures a step of PPO with all there, and taking turns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.command import run_command
from bench.job import Job, group_of
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.shapes import SHAPES, random_directory, word_tokenizer
from bench.side import measured
from bench.spread import timed_median
from whet.errors import UserError
from whet.models.load import load_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings

WORKLOAD = replace(group_of(128, 1, 128, 256), name="offload")
QUICK = replace(group_of(3, 1, 8, 12, top_id=500), name="offload")
STEPS = 4  # the first is apart
PLACES = ("never", "always")


def main(arguments: Sequence[str]) -> None:
    """Measures both placements and writes a result file."""
    options = _options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.quick:
        raise UserError("torch finds no CUDA device: run this on a GPU machine, or try it out with --quick")
    shape = SHAPES["tiny" if options.quick else options.model]
    with TemporaryDirectory(prefix="bench-") as place:
        directory = Path(place)
        model = random_directory(shape, directory / "model")
        reward = reward_directory(model, shape.config.vocab_size, directory / "reward")
        job = Job(
            side="whet step",
            model=str(model),
            device=device,
            workload=QUICK if options.quick else WORKLOAD,
            runs=STEPS,
            words=shape.config.vocab_size,
            overrides=("algorithm=ppo", "algorithm.kl.coefficient=0.05", f"reward.model={reward}"),
        )
        sides = {where: _side(job, where, directory) for where in PLACES}
    content = {
        "what": "offload",
        "title": shape.title,
        "quick": options.quick,
        "workload": asdict(job.workload),
        "sides": sides,
    }
    path = write_result(options.out, machine(device), content, revision=options.commit)
    for where, side in sides.items():
        print(f"{where}: {side['figure']}")
    print(path)


def reward_directory(model: Path, vocab_size: int, directory: Path) -> Path:
    """A reward model of the same shape."""
    directory.mkdir()
    new_reward_model(load_model(model), RewardSettings(kind="preference"), seed=0).save(directory)
    word_tokenizer(vocab_size).save(directory)
    return directory


def figure(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median step, the most memory in any, and what is taken between steps, when the sampler looks for room."""
    return {
        "seconds": timed_median([run["seconds"] for run in runs]),
        "stages": {stage: timed_median([run["breakdown"][stage] for run in runs]) for stage in runs[0]["breakdown"]},
        "peak_bytes": runs[-1]["peak_bytes"],
        "resting_bytes": runs[-1]["resting_bytes"],
    }


def _side(job: Job, where: str, directory: Path) -> dict[str, Any]:
    found = measured(replace(job, overrides=(*job.overrides, f"offload={where}")), directory)
    del found["overrides"]  # they name a folder that is gone
    return {**found, "figure": figure(found["runs"])}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.offload", description=__doc__)
    parser.add_argument("--model", choices=["smollm2", "qwen3"], default="qwen3")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the result file goes")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works; also on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
