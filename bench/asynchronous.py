"""Sampling beside the updates on one GPU: `python -m bench.asynchronous --model smollm2` measures both ways.

*synchronous* takes turns. *asynchronous* has S = 1 and one worker, a process of its own on the same GPU, which samples
the rollouts of the next step while the trainer updates. Without NVIDIA's MPS the driver gives the GPU to the two
processes in turn, so only what leaves it idle is won. One model takes up to 100 seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.command import run_command
from bench.job import Job, group_of
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.shapes import SHAPES, random_directory
from bench.side import measured
from bench.spread import timed_median
from whet.errors import UserError

WORKLOADS = {  # model → what a step samples, and how many steps fit into the time
    "smollm2": (replace(group_of(64, 8, 128, 512), name="asynchronous"), 6),
    "qwen3": (replace(group_of(64, 8, 128, 256), name="asynchronous"), 5),
    "tiny": (replace(group_of(2, 4, 8, 12, top_id=500), name="asynchronous"), 4),
}
SIDES: dict[str, tuple[str, ...]] = {
    "synchronous": (),
    "asynchronous": ("asynchronous.staleness=1", "asynchronous.workers=1"),
}
SAME = ("eval.every_steps=0",)  # overrides of both


def main(arguments: Sequence[str]) -> None:
    """Measures one way after the other and writes a result file."""
    options = _options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.quick:
        raise UserError("torch finds no CUDA device: run this on a GPU machine, or try it out with --quick")
    name = "tiny" if options.quick else options.model
    workload, steps = WORKLOADS[name]
    with TemporaryDirectory(prefix="bench-") as place:
        directory = Path(place)
        job = Job(
            side="whet step",
            model=str(random_directory(SHAPES[name], directory / "model")),
            device=device,
            workload=workload,
            runs=options.steps or steps,
            words=SHAPES[name].config.vocab_size,
        )
        compiled = {"TRITON_CACHE_DIR": f"{directory}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor"}
        sides = {}
        for side, overrides in SIDES.items():
            found = measured(replace(job, overrides=(*SAME, *overrides, *options.set)), directory, environment=compiled)
            sides[side] = {**found, "figure": figure(found["runs"])}
            print(f"{side}: {sides[side]['figure']}", flush=True)
    content = {
        "what": f"asynchronous-{name}",
        "title": SHAPES[name].title,
        "quick": options.quick,
        "workload": asdict(workload),
        "sides": sides,
    }
    print(write_result(options.out, machine(device), content, revision=options.commit))


def figure(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the steps after the first; and the most memory of any step: of the trainer, and of all processes."""
    stages = {stage: timed_median([run["breakdown"][stage] for run in runs]) for stage in runs[0]["breakdown"]}
    return {
        "seconds": timed_median([run["seconds"] for run in runs]),
        "mean_seconds": fmean(run["seconds"] for run in runs[1:]),
        "waiting_seconds": stages.get("waiting"),
        "stages": stages,
        "peak_bytes": _most(runs, "peak_bytes"),
        "device_bytes": _most(runs, "device_bytes"),
    }


def _most(runs: Sequence[dict[str, Any]], key: str) -> int | None:
    """None where the device does not count."""
    found = [run[key] for run in runs]
    return None if None in found else max(found)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.asynchronous", description=__doc__)
    parser.add_argument("--model", choices=[name for name in WORKLOADS if name != "tiny"], default="smollm2")
    parser.add_argument("--steps", type=int, default=0, help="steps to make, at least 2; the first is apart")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of both recipes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the result file goes")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works; also on a CPU")
    options = parser.parse_args(arguments)
    if options.steps == 1:
        raise UserError("--steps is 1: the first step compiles, so at least 2 are needed")
    return options


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
