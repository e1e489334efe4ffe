"""Whole GRPO steps on one GPU, with LoRA or of all weights (`--rank 0`): `python -m bench.adapters [--model qwen3-8b]`.

Peak memory is that of torch's allocator over the whole run, loading included. TMPDIR should have room for the weights.
"""

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
from bench.gpu import step_figure
from bench.job import Job, group_of
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.roofline import training_flop
from bench.shapes import SHAPES, large_directory
from bench.side import measured
from whet.errors import UserError

MODELS = ("qwen3-1.7b", "qwen2.5-3b", "qwen3-4b", "qwen3-8b")
# What bounds memory: sequences sampled at a time, tokens of a forward pass, activations.
SPARING = ("engine.max_sequences=64", "update.micro_batch_tokens=8192", "model.gradient_checkpointing=true")


def main(arguments: Sequence[str]) -> None:
    """Measures every model that was asked for and writes a result file for each."""
    options = _options(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.quick:
        raise UserError("torch finds no CUDA device: run this on a GPU machine, or try it out with --quick")
    for name in ["tiny"] if options.quick else options.model or MODELS:
        workload = group_of(2, 4, 8, 12, top_id=500) if options.quick else group_of(options.prompts, 8, 128, 512)
        with TemporaryDirectory(prefix="bench-") as place:
            model = large_directory(SHAPES[name], Path(place) / "model", device)
            job = Job(
                side="whet step",
                model=str(model),
                device=device.type,
                workload=replace(workload, name="step"),
                runs=options.steps,
                words=SHAPES[name].config.vocab_size,
                overrides=(*((f"model.lora={options.rank}",) if options.rank else ()), *SPARING, *options.set),
            )
            side = measured(job, Path(place))
        content = {
            "what": f"{'lora' if options.rank else 'full'}-step-{name}",
            "title": SHAPES[name].title,
            "quick": options.quick,
            "workload": asdict(workload),
            "rank": options.rank,
            "sides": {"whet": {**side, "figure": _figure(side, job, name)}},
        }
        path = write_result(options.out, machine(device.type), content, revision=options.commit)
        print(name, content["sides"]["whet"]["figure"], path, sep="\n", flush=True)


def _figure(side: dict[str, Any], job: Job, name: str) -> dict[str, Any]:
    """The median step; the share of the arithmetic counts a frozen model's two thirds of a backward pass' products."""
    tokens = job.workload.prompt_tokens[1] + job.workload.new_tokens[1]
    flop = training_flop(SHAPES[name].config, sequences=job.workload.sequences, tokens=tokens)
    return step_figure(side["runs"], flop * 2 / 3 if any("model.lora" in one for one in job.overrides) else flop)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.adapters", description=__doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="one model instead of all; may be repeated")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters; 0: all weights are trained")
    parser.add_argument(
        "--prompts", type=int, default=32, help="prompts of a step, each with 8 completions of 512 tokens"
    )
    parser.add_argument("--steps", type=int, default=3, help="at least 2; the first is apart")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of the recipe")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where result files go")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works; also on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
