"""Rollouts and whole GRPO steps on one GPU: `python -m bench.gpu [--only group|mixed|step] [--model smollm2|qwen3]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench import roofline
from bench.command import run_command
from bench.gpu_alone import gpu_alone
from bench.job import Job, group_of, mixed_of
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.shapes import SHAPES, Shape, large_directory, random_directory
from bench.side import measured, peer
from bench.spread import timed_median
from whet.errors import UserError
from whet.models.layers.decoder_config import parameter_count

WORKLOADS = {
    "group": group_of(64, 8, 128, 512),
    "mixed": mixed_of(256, 100, 1024),
    "step": replace(group_of(64, 8, 128, 512), name="step"),
}
QUICK = {
    "group": group_of(3, 2, 8, 12, top_id=500),
    "mixed": mixed_of(4, 3, 9, top_id=500),
    "step": replace(group_of(2, 4, 8, 12, top_id=500), name="step"),
}
STEP_MODELS = ("smollm2",)  # whole steps are measured for this one unless another is asked for
ROLLOUT_RUNS = 2  # the second counts
STEP_RUNS = 4
LARGE = 10**9  # weights, above which a model is made on the GPU and in bf16


def main(arguments: Sequence[str]) -> None:
    """Measures what was asked for and writes a result file for each."""
    options = _options(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.quick:
        raise UserError("torch finds no CUDA device: run this on a GPU machine, or try it out with --quick")
    models = ["tiny"] if options.quick else [options.model] if options.model else ["smollm2", "qwen3"]
    for name in models:
        with TemporaryDirectory(prefix="bench-") as place:
            directory = Path(place)
            is_large = parameter_count(SHAPES[name].config) > LARGE
            with gpu_alone(torch.device(device if is_large else "cpu")):
                model = (
                    large_directory(SHAPES[name], directory / "model", torch.device(device))
                    if is_large
                    else random_directory(SHAPES[name], directory / "model")
                )
            for what in [options.only] if options.only else list(WORKLOADS):
                if what == "step" and name not in (*STEP_MODELS, "tiny") and not options.model:
                    continue
                workload = (QUICK if options.quick else WORKLOADS)[what]
                job = Job(
                    side="",
                    model=str(model),
                    device=device,
                    workload=workload,
                    runs=options.steps if what == "step" else ROLLOUT_RUNS,
                    words=SHAPES[name].config.vocab_size,
                    overrides=tuple(options.set),
                )
                asked = left_out if options.alone else peer
                content = (whole_step if what == "step" else rollout)(SHAPES[name], job, directory, asked)
                kind = {"what": f"{what}-{name}", "title": SHAPES[name].title, "quick": options.quick}
                path = write_result(options.out, machine(device), {**kind, **content}, revision=options.commit)
                print(summary(content), path, sep="\n", flush=True)


Peer = Callable[[Job, Path], dict[str, Any]]


def left_out(job: Job, directory: Path) -> dict[str, Any]:  # noqa: ARG001 - in the place of `peer`
    """A peer that was not asked for."""
    return {"missing": "left out"}


def rollout(shape: Shape, job: Job, directory: Path, peer: Peer = peer) -> dict[str, Any]:
    """whet and its peers on one rollout workload."""
    sides = {"whet": measured(replace(job, side="whet rollout"), directory)}
    if job.workload.name == "group":
        sides["transformers"] = peer(replace(job, side="transformers rollout"), directory)
    else:
        sides["transformers"] = {"missing": "not measured: generate pads prompts of different lengths"}
    sides["vllm"] = peer(replace(job, side="vllm rollout"), directory)
    lengths = [(len(tokens), new) for tokens, new in job.workload.requests()]
    ideal = roofline.rollout_seconds(shape.config, lengths, group=job.workload.group)
    tokens = job.workload.group * sum(new for _, new in lengths)
    for side in sides.values():
        if "runs" in side:
            side["figure"] = rollout_figure(side["runs"][-1], ideal, steps=max(new for _, new in lengths))
    limits = {
        "decode": roofline.DECODE,
        "prefill": roofline.PREFILL,
        "letters": roofline.LETTERS,
        "ideal_seconds": ideal,
        "ideal_tokens_per_second": tokens / ideal,
    }
    return {"workload": asdict(job.workload), "limits": limits, "sides": sides}


def rollout_figure(run: dict[str, Any], ideal: float, *, steps: int) -> dict[str, float]:
    """What the page shows of one run; a step is one token more for everything that is still unfinished."""
    return {
        "tokens_per_second": run["tokens"] / run["seconds"],
        "milliseconds_per_step": 1e3 * run["seconds"] / steps,
        "share_of_roofline": ideal / run["seconds"],
    }


def whole_step(shape: Shape, job: Job, directory: Path, peer: Peer = peer) -> dict[str, Any]:
    """whet's loop and TRL's trainer on one GRPO step, and whet's training part taken apart."""
    # Empty caches, so that the first step pays for every compilation.
    cold = {"TRITON_CACHE_DIR": f"{directory}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor"}
    whet = measured(replace(job, side="whet step"), directory, environment=cold)
    passes = measured(replace(job, side="whet passes", runs=3), directory, environment=cold)
    sides = {"whet": whet, "trl": peer(replace(job, side="trl step"), directory)}
    flop = roofline.training_flop(
        shape.config,
        sequences=job.workload.sequences,
        tokens=job.workload.prompt_tokens[1] + job.workload.new_tokens[1],
    )
    for side in sides.values():
        if "runs" in side:
            side["figure"] = step_figure(side["runs"], flop)
    return {
        "workload": asdict(job.workload),
        "limits": {"training": roofline.TRAINING, "letters": roofline.LETTERS, "training_flop": flop},
        "sides": sides,
        "passes": passes,
    }


def step_figure(runs: Sequence[dict[str, Any]], flop: float) -> dict[str, Any]:
    """The first step, the median of the others and of their stages, and the training part's share of the arithmetic."""
    peaks = [run["peak_bytes"] for run in runs]
    stages = {stage: timed_median([run["breakdown"][stage] for run in runs]) for stage in runs[0]["breakdown"]}
    figure = {
        "first_seconds": runs[0]["seconds"],
        "seconds": timed_median([run["seconds"] for run in runs]),
        "peak_bytes": None if None in peaks else max(peaks),
        "stages": stages,
    }
    if "update" in stages:
        figure["training_share"] = flop / stages["update"] / roofline.FLOPS
    return figure


def summary(content: dict[str, Any]) -> str:
    """A line for each side."""
    lines = []
    for name, side in content["sides"].items():
        figures = side["figure"] if "figure" in side else {"missing": side["missing"]}
        shown = ", ".join(
            f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        )
        lines.append(f"{content['workload']['name']} {name}: {shown}")
    return "\n".join(lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--only", choices=list(WORKLOADS), help="one workload instead of all")
    parser.add_argument("--model", choices=[name for name in SHAPES if name != "tiny"], help="instead of both")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where result files go")
    parser.add_argument(
        "--steps", type=int, default=STEP_RUNS, help="whole steps to make, at least 2; the first is apart"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of the step's recipe")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--alone", action="store_true", help="without the peers, which take most of the time")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it works; also on a CPU")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        raise UserError(f"--steps is {options.steps}: the first step compiles, so at least 2 are needed")
    return options


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
