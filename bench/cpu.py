"""Whole GRPO steps on a CPU, whet against TRL: `python -m bench.cpu --model DIRECTORY`, in the venv that has TRL.

In every repeat each side is a process of its own, one after the other (A B C, A B C, …), so a ratio compares neighbours
in time. fp32 on both sides, the same prompts, every completion at its full length.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.command import run_command
from bench.job import Job, grid, group_of
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.shapes import SHAPES, endless_directory, random_directory
from bench.side import measured, peer
from bench.spread import paired_ratio, spread, timed_median
from whet.errors import UserError

SIZES = ("2x4x32", "4x8x64")
PROMPT_TOKENS = 45
RANDOM_NOTE = "random weights in the true shape: no --model was given"
QUIET = 1.0  # a load before the first process above this means that somebody else is computing


def main(arguments: Sequence[str]) -> None:
    """Measures every size and writes a result file for each."""
    options = _options(arguments)
    busy = busy_notes(os.getloadavg()[0])
    with TemporaryDirectory(prefix="bench-") as place:
        directory = Path(place)
        shape = SHAPES["tiny" if options.quick else "smollm2"]
        if options.model is not None:
            model, words, notes = endless_directory(options.model, directory / "model"), 0, []
        else:
            model, words = random_directory(shape, directory / "model"), shape.config.vocab_size
            notes = [RANDOM_NOTE]
        for size in ["2x2x4"] if options.quick else options.size:
            prompts, group, new = grid(size)
            job = Job(
                side="",
                model=str(model),
                device="cpu",
                workload=group_of(prompts, group, 5 if options.quick else PROMPT_TOKENS, new, top_id=500),
                runs=options.steps,
                threads=options.threads,
                words=words,
                overrides=tuple(options.set),
                lora=options.lora,
            )
            if options.profile:
                what, content = f"cpu-profile-{size}", profiled(job, directory)
            else:
                what, content = (
                    f"cpu-lora-{size}" if options.lora else f"cpu-{size}",
                    compare(job, options.repeats, directory),
                )
            kind = {"what": what, "title": shape.title, "quick": options.quick, "notes": notes + busy}
            path = write_result(
                options.out, machine("cpu", options.threads), {**kind, **content}, revision=options.commit
            )
            print(*(profile_lines(size, content) if options.profile else summary(size, content)), path, sep="\n")


def busy_notes(load: float) -> list[str]:
    """A warning in the result where somebody else is computing: figures and ratios then mean little."""
    return [f"the machine was busy: load {load:.1f} before the first process"] if load > QUIET else []


def compare(job: Job, repeats: int, directory: Path) -> dict[str, Any]:
    """`repeats` rounds of whet, TRL and transformers, and the ratios of each round."""
    turns = {"whet": "whet step", "trl": "trl step", "transformers": "transformers rollout"}
    sides: dict[str, dict[str, Any]] = {name: {"repeats": []} for name in turns}
    for _ in range(repeats):
        for name, side in turns.items():
            asked = replace(job, side=side)
            answer = measured(asked, directory) if name == "whet" else peer(asked, directory)
            if "missing" in answer:
                sides[name] = answer
            elif "missing" not in sides[name]:
                sides[name]["repeats"].append(answer)
    return {"workload": asdict(job.workload), "sides": sides, "figure": figure(sides, job)}


def profiled(job: Job, directory: Path) -> dict[str, Any]:
    """Where whet's rollout and update spend their time."""
    answer = measured(replace(job, side="whet profile"), directory)
    return {"workload": asdict(job.workload), "sides": {"whet": answer}}


def figure(sides: dict[str, dict[str, Any]], job: Job) -> dict[str, Any]:
    """Seconds of a step and how often faster whet is: at the whole step than TRL, at rollouts than transformers."""
    whet = [_seconds(answer) for answer in sides["whet"]["repeats"]]
    rollouts = [
        timed_median([run["breakdown"]["rollout"] for run in answer["runs"]]) for answer in sides["whet"]["repeats"]
    ]
    tokens = job.workload.sequences * job.workload.new_tokens[1]
    found: dict[str, Any] = {
        "whet_seconds": asdict(spread(whet)),
        "whet_rollout_tokens_per_second": asdict(spread([tokens / seconds for seconds in rollouts])),
    }
    if "repeats" in sides["trl"]:
        trl = [_seconds(answer) for answer in sides["trl"]["repeats"]]
        found |= {"trl_seconds": asdict(spread(trl)), "step_ratio": asdict(paired_ratio(trl, whet))}
    if "repeats" in sides["transformers"]:
        generate = [_seconds(answer) for answer in sides["transformers"]["repeats"]]
        found["transformers_tokens_per_second"] = asdict(spread([tokens / seconds for seconds in generate]))
        found["rollout_ratio"] = asdict(paired_ratio(generate, rollouts))
    return found


def profile_lines(size: str, content: dict[str, Any]) -> Iterator[str]:
    """A line for each stage and each of its operations."""
    for name, stage in content["sides"]["whet"]["stages"].items():
        yield f"{size} {name}: {stage['seconds']:.3f} s"
        for one in stage["operations"]:
            yield f"  {one['seconds']:8.3f} s {one['calls']:6d} × {one['operation']}"


def summary(size: str, content: dict[str, Any]) -> list[str]:
    """A line for each figure and each side that is missing."""
    lines = [
        f"{size} {name}: {one['median']:.3g} ({one['low']:.3g}–{one['high']:.3g})"
        for name, one in content["figure"].items()
    ]
    lines += [f"{size} {name}: {side['missing']}" for name, side in content["sides"].items() if "missing" in side]
    return lines


def _seconds(answer: dict[str, Any]) -> float:
    return timed_median([run["seconds"] for run in answer["runs"]])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="directory of SmolLM2-135M-Instruct; without it, random weights")
    parser.add_argument("--size", action="append", metavar="PxGxN", help="prompts x group x new tokens")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument(
        "--steps", type=int, default=4, help="steps of each process, at least 2; the first is not timed"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where result files go")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of whet's recipe")
    parser.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="LoRA in place of all weights, TRL with PEFT"
    )
    parser.add_argument("--profile", action="store_true", help="whet alone: the operations that take longest")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it works")
    options = parser.parse_args(arguments)
    options.size = options.size or list(SIZES)
    if options.steps < 2 or options.repeats < 1:
        raise UserError("--steps must be 2 or more (the first is not timed) and --repeats 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
