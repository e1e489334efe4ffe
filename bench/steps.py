"""whet's whole step: the real loop with a config, a task, a grader in its worker and a run directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from bench.clock import device_bytes, take_peak
from bench.job import Job
from bench.recipe import step_config
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.recipe import dump
from whet.runs.checkpoints import Fill
from whet.runs.directory import RunDirectory
from whet.train.online import loop as online
from whet.train.session import session


class Watch:
    """Notes what the loop says of each step."""

    def __init__(self, device: torch.device, tokens_a_step: int) -> None:
        self.device, self.tokens_a_step = device, tokens_a_step
        self.started = time.perf_counter()
        self.begun_seconds = 0.0  # until the end of the first step, loading and the first evaluation included
        self.runs: list[dict[str, Any]] = []

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """One step's seconds and peak memory; refuses completions that ended early."""
        if metrics["tokens"] != step * self.tokens_a_step:
            raise RunFailed(
                f"{metrics['tokens']:g} tokens were trained in {step} steps instead of {step * self.tokens_a_step}: "
                "completions ended early, so the figures mean nothing"
            )
        if not self.runs:
            self.begun_seconds = time.perf_counter() - self.started
        stages = {key.removeprefix("seconds/"): value for key, value in timings.items() if key.startswith("seconds/")}
        whole = stages.pop("step")
        stages.pop("eval", None)  # after the last step, and not in its seconds
        self.runs.append(
            {
                "seconds": whole,
                "breakdown": stages,
                "peak_bytes": take_peak(self.device),
                "device_bytes": device_bytes(self.device),
                "resting_bytes": torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None,
                "mismatch": metrics["mismatch/mean"],
            }
        )

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, text: str) -> None:
        """To the log of the measuring process."""
        print(text, flush=True)

    def close(self) -> None:
        """Owns nothing."""


class Unsaved(RunDirectory):
    """A run directory without models: a checkpoint of a large one would not fit on the disk of a rented machine."""

    def save(self, step: int, fill: Fill, state: Mapping[str, Any], **_: Any) -> Path:  # noqa: ARG002
        """Writes nothing."""
        return self.path

    def save_best(self, fill: Fill, info: Mapping[str, Any]) -> None:
        """Writes nothing."""


def measure(job: Job) -> dict[str, Any]:
    """`runs` steps from start to end, as `whet train` makes them, without checkpoints."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        config = step_config(job, directory)
        world = World.init(config.device)
        watch = Watch(world.device, job.workload.sequences * job.workload.new_tokens[1])
        with (
            Unsaved.create(directory, "bench", dump(config)) as run,
            patch.object(session, "require_space", return_value=[]),
        ):
            online.train(config, run, world, watch)
    return {"runs": watch.runs, "start_to_first_step_seconds": watch.begun_seconds, "overrides": list(job.overrides)}
