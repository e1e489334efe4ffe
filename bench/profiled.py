"""Where a whet step spends its time on a CPU: torch's profiler around a rollout and around an update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.clock import now
from bench.job import Job
from bench.passes import loss_of, random_sequences
from bench.recipe import step_config
from bench.rollouts import check_lengths
from whet.batching import passes, take
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.records import Prompt, Sequences
from whet.train.optimizers.optimizer import descend
from whet.train.setup.build import Parts, build_parts

MOST = 10  # operations that are named


def measure(job: Job) -> dict[str, Any]:
    """Seconds of a rollout and of an update after a warm-up; then, watched, the operations that took longest."""
    with TemporaryDirectory() as name:
        config = step_config(job, Path(name))
    world = World.init(config.device)
    parts = build_parts(config, world)
    requests = job.workload.requests()
    prompts = [Prompt(tokens=tokens, stream=(i,), limit=limit) for i, (tokens, limit) in enumerate(requests)]
    sequences = random_sequences(job, parts.policy.vocab_size, world.device)
    groups = torch.arange(len(sequences.lengths), device=world.device) // job.workload.group

    def rollout() -> None:
        made = parts.engine.generate(prompts, config.rollout.sampling, count=job.workload.group)
        found = [len(completion.tokens) for completions in made for completion in completions]
        check_lengths(found, [prompt.limit for prompt in prompts], job.workload.group)

    def update() -> None:
        losses = _losses(parts, config, sequences, groups)
        descend(losses, [parts.optimizer], world, max_grad_norm=config.update.max_grad_norm)

    stages = {"rollout": rollout, "update": update}
    for stage in stages.values():
        stage()
    seconds = {name: _seconds(stage, world.device) for name, stage in stages.items()}
    operations = {name: operation_times(stage) for name, stage in stages.items()}
    return {"stages": {name: {"seconds": seconds[name], "operations": operations[name]} for name in stages}}


def operation_times(call: Callable[[], None]) -> list[dict[str, Any]]:
    """Seconds in themselves and number of calls of the operations that took longest during `call`, on a CPU."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        call()
    found = sorted(watched.key_averages(), key=lambda one: one.self_cpu_time_total, reverse=True)
    return [
        {"operation": one.key, "calls": one.count, "seconds": one.self_cpu_time_total / 1e6} for one in found[:MOST]
    ]


def _losses(parts: Parts, config: OnlineConfig, sequences: Sequences, groups: Tensor) -> Iterator[Tensor]:
    weight = 1 / float(sequences.mask.sum())
    for rows in passes(sequences, groups, config.update, parts.policy):
        yield loss_of(parts, config, take(sequences, rows), groups[rows], weight)


def _seconds(call: Callable[[], None], device: torch.device) -> float:
    started = now(device)
    call()
    return now(device) - started
