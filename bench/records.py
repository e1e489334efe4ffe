"""What it costs to record every trained token: `python -m bench.records`; about three minutes of a core.

Every second step of a run records its rollouts, so steps with and without records are neighbours in one process. They
are compared by the processor time of the thread that trains, which other work on the machine does not change much; the
time of the thread that packs and writes beside it is told apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.command import run_command
from bench.job import Job, grid, group_of
from bench.machine import machine
from bench.recipe import NEVER, step_config
from bench.shapes import SHAPES, random_directory
from whet.cli.progress import SilentProgress
from whet.config import OnlineConfig
from whet.recipe import Recipe, read_recipe
from whet.train.start import start_run

PROMPT_TOKENS = 45
MODELS = ("sorting", "smollm2")  # a toy, and random weights in the shape of SmolLM2-135M
WARM_UP = 2  # steps that are not counted
SORTING = ("toy-sorting", "cold_start.steps=5", "track=[]", "device=cpu", f"eval.every_steps={NEVER}")


@dataclass
class Clock(SilentProgress):
    """Processor seconds of each step: of the thread that trains, and of the others."""

    at: tuple[float, float] = (0.0, 0.0)
    own: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        del step, metrics, timings
        assert threading.current_thread() is threading.main_thread()
        own, process = time.thread_time(), time.process_time()
        self.own.append(own - self.at[0])
        self.others.append(process - self.at[1] - self.own[-1])
        self.at = own, process


def measured(config: OnlineConfig, runs: Path) -> Clock:
    clock = Clock()
    start_run(Recipe(name="records", config=config, written={}), runs, lambda *_: clock)
    return clock


def told(name: str, clock: Clock, rollouts: int) -> str:
    """Steps with records beside those without: median of the neighbours' differences."""
    steps = range(WARM_UP, len(clock.own) - 1)
    without = statistics.median(clock.own[i] for i in steps if i % 2 == 0)  # counted from 1, even steps record
    more = [clock.own[i] - (clock.own[i - 1] + clock.own[i + 1]) / 2 for i in steps if i % 2 == 1]
    beside = sum(clock.others) / (len(clock.others) / 2)
    return (
        f"{name}: {rollouts} rollouts a step, {without:.3f} s without records; with them "
        f"{100 * statistics.median(more) / without:+.2f} % (quartiles {_quartiles(more, without)}, {len(more)} steps); "
        f"packing and writing beside it {100 * beside / without:.2f} %"
    )


def _quartiles(more: Sequence[float], without: float) -> str:
    low, _, high = statistics.quantiles(more, n=4)
    return f"{100 * low / without:+.2f} to {100 * high / without:+.2f} %"


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    print(f"{machine('cpu')}, load {os.getloadavg()[0]:.1f}")
    for top in options.top:
        keys = ["save.rollouts_every_steps=2", f"save.every_steps={NEVER}", f"save.top_tokens={top}"]
        for what in options.model:
            with TemporaryDirectory(prefix="bench-") as place:
                if what == "sorting":
                    config = read_recipe(SORTING[0], [*SORTING[1:], *keys, f"steps={options.steps}"]).config
                    assert isinstance(config, OnlineConfig)
                else:
                    config = language_model(Path(place), keys, options)
                count = config.rollout.prompts * config.rollout.group
                name = what + (f", the {top} likeliest tokens" if top else "")
                print(told(name, measured(config, Path(place) / "runs"), count), flush=True)


def language_model(place: Path, keys: Sequence[str], options: argparse.Namespace) -> OnlineConfig:
    """Random weights in the shape of SmolLM2-135M; every completion has its full length."""
    shape = SHAPES["smollm2"]
    prompts, group, new = grid(options.size)
    job = Job(
        side="whet",
        model=str(random_directory(shape, place / "model")),
        device="cpu",
        workload=group_of(prompts, group, PROMPT_TOKENS, new, top_id=500),
        runs=options.large_steps,
        words=shape.config.vocab_size,
        overrides=tuple(keys),
    )
    return step_config(job, place)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--top", type=int, nargs="+", default=(0, 5), help="likeliest tokens that are recorded")
    parser.add_argument("--steps", type=int, default=80, help="of the small model")
    parser.add_argument("--large-steps", type=int, default=12, help="of the language model")
    parser.add_argument("--size", default="2x4x32", help="of the language model: prompts x group x new tokens")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
