"""What it costs to record every trained token: `python -m bench.records`; about three minutes of a core.

Every third step of a run records its rollouts, and the thread that packs and writes works into the next one, so these
two steps are compared with those before and after them, which have neither. That is the processor time of the thread
that trains, which other work on the machine does not change much; that of the thread beside it is told apart. The
doctor looks at a run now and then: steps are left out where it looks at some of the four and not at the others.

Of this sum, the calls that record are timed by themselves too: what is left is the work of two threads at a time, and
noise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from bench.command import run_command
from bench.job import Job, grid, group_of
from bench.machine import machine
from bench.recipe import NEVER, step_config
from bench.shapes import SHAPES, random_directory
from whet.cli.progress import SilentProgress
from whet.config import OnlineConfig
from whet.doctor.watch import stride
from whet.recipe import Recipe, read_recipe
from whet.runs.directory import RunDirectory
from whet.train.online.token_record import TokenRecord
from whet.train.start import start_run

PROMPT_TOKENS = 45
MODELS = ("sorting", "smollm2")  # a toy, and random weights in the shape of SmolLM2-135M
WARM_UP = 2  # steps that are not counted
EVERY = 3  # steps of which one is recorded
SORTING = ("toy-sorting", "cold_start.steps=5", "track=[]", "device=cpu", f"eval.every_steps={NEVER}")


CALLS = ((TokenRecord, "begin"), (TokenRecord, "see"), (TokenRecord, "gathered"), (RunDirectory, "record"))


@dataclass
class Clock(SilentProgress):
    """Processor seconds of each step: of the thread that trains, of its calls that record, and of other threads."""

    at: tuple[float, float] = (0.0, 0.0)
    within: float = 0.0  # in calls that record, since the last step
    calls: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        del step, metrics, timings
        assert threading.current_thread() is threading.main_thread()
        own, process = time.thread_time(), time.process_time()
        self.own.append(own - self.at[0])
        self.others.append(process - self.at[1] - self.own[-1])
        self.calls.append(self.within)
        self.at, self.within = (own, process), 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def measured_call(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.within += time.thread_time() - began

        return measured_call


def measured(config: OnlineConfig, runs: Path) -> Clock:
    clock = Clock()
    with ExitStack() as stack:
        for owner, name in CALLS:
            stack.enter_context(patch.object(owner, name, clock.timed(getattr(owner, name))))
        start_run(Recipe(name="records", config=config, written={}), runs, lambda *_: clock)
    return clock


def told(name: str, clock: Clock, rollouts: int) -> str:
    """Steps with records beside those without: median of the neighbours' differences."""
    more, own = differences(clock.own), clock.own
    without = statistics.median(own[step - 1] for step in range(WARM_UP + 1, len(own) + 1) if step % EVERY == EVERY - 1)
    beside = statistics.median(differences(clock.others))
    calls = statistics.median(differences(clock.calls))
    return (
        f"{name}: {rollouts} rollouts a step, {without:.3f} s without records; with them "
        f"{100 * statistics.median(more) / without:+.2f} % (quartiles {_quartiles(more, without)}, {len(more)} steps); "
        f"the calls that record {100 * calls / without:.2f} %; packing and writing beside them "
        f"{100 * beside / without:.2f} %"
    )


def differences(seconds: Sequence[float]) -> list[float]:
    """What a record adds to its step and the next one, beyond the step before and the step after; of each record.

    `seconds` are those of steps 1, 2, …
    """
    every, found = stride(len(seconds)), []
    for step in range(EVERY, len(seconds) - 1, EVERY):
        four = range(step - 1, step + 3)
        if step > WARM_UP + 1 and len({one % every == 0 for one in four}) == 1:
            before, recorded, following, after = (seconds[one - 1] for one in four)
            found.append(recorded + following - before - after)
    return found


def _quartiles(more: Sequence[float], without: float) -> str:
    low, _, high = statistics.quantiles(more, n=4)
    return f"{100 * low / without:+.2f} to {100 * high / without:+.2f} %"


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    print(f"{machine('cpu')}, load {os.getloadavg()[0]:.1f}")
    for top in options.top:
        keys = [f"save.rollouts_every_steps={EVERY}", f"save.every_steps={NEVER}", f"save.top_tokens={top}"]
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
    parser.add_argument("--steps", type=int, default=240, help="of the small model")
    parser.add_argument("--large-steps", type=int, default=24, help="of the language model")
    parser.add_argument("--size", default="2x4x32", help="of the language model: prompts x group x new tokens")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
