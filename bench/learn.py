"""Learning on one GPU: `python -m bench.learn --model DIR` trains a recipe with several seeds side by side.

Held-out accuracy over the seconds of steps and evaluations; loading and checkpoints are not in them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.command import run_command
from bench.machine import machine
from bench.results import RESULTS, write_result
from whet.errors import RunFailed, UserError
from whet.runs.directory import RunDirectory

RECIPE = "grpo-arithmetic-gpu"


def main(arguments: Sequence[str]) -> None:
    """Trains all seeds at the same time on one device and writes a result file."""
    options = _options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with TemporaryDirectory(prefix="bench-") as place:
        started = time.perf_counter()
        children = {seed: _start(options, seed, Path(place)) for seed in options.seeds}
        failed = [seed for seed, child in children.items() if child.wait() != 0]
        if failed:
            raise RunFailed(f"seed {failed[0]}: {_log(Path(place), failed[0]).read_text('utf-8')[-500:]}")
        seconds = time.perf_counter() - started
        runs = {str(seed): RunDirectory.open(_run(Path(place), seed), is_writer=False) for seed in options.seeds}
        curves = {seed: curve(run) for seed, run in runs.items()}
        if not all(curves.values()):
            raise UserError(f"{options.recipe} measures no held-out accuracy: choose a recipe whose task has answers")
        mismatch = {seed: [row["mismatch/mean"] for row in run.metrics() if row["step"]] for seed, run in runs.items()}
    content = {
        "what": "learning",
        "title": f"{Path(options.model).name}, {options.recipe}",
        "quick": options.quick,
        "workload": {"recipe": options.recipe, "seeds": options.seeds, "overrides": options.set},
        "sides": {"whet": {"curves": curves, "mismatch": mismatch, "seconds_all": seconds}},
    }
    path = write_result(options.out, machine(device), content, revision=options.commit)
    for seed, points in curves.items():
        first, last = points[0], points[-1]
        print(f"seed {seed}: {first['accuracy']:.1%} → {last['accuracy']:.1%} in {last['seconds']:.0f} s")
    print(path)


def curve(run: RunDirectory) -> list[dict[str, float]]:
    """Every evaluation: step, seconds of steps and evaluations up to it, accuracy and its interval."""
    spent = {int(row["step"]): row["seconds/step"] + row.get("seconds/eval", 0.0) for row in run.timings()}
    points = []
    for row in run.metrics():
        if "eval/accuracy" in row:
            step = int(row["step"])
            seconds = sum(value for number, value in spent.items() if number <= step)
            interval = {"low": row["eval/accuracy_low"], "high": row["eval/accuracy_high"]}
            points.append({"step": step, "seconds": seconds, "accuracy": row["eval/accuracy"], **interval})
    return points


def _start(options: argparse.Namespace, seed: int, place: Path) -> subprocess.Popen[bytes]:
    changes = [f"seed={seed}", f"model.path={options.model}", "track=[]", *options.set]
    command = [sys.executable, "-m", "whet", "train", options.recipe, *changes, "--runs", str(place / str(seed))]
    with _log(place, seed).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))


def _log(place: Path, seed: int) -> Path:
    return place / f"{seed}.log"


def _run(place: Path, seed: int) -> Path:
    (path,) = (place / str(seed)).iterdir()
    return path


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learn", description=__doc__)
    parser.add_argument("--model", required=True, help="directory of the model to start from")
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="to try the command out; the page leaves it out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
