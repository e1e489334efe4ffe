"""The training part of a step taken apart: forward, backward and optimizer on a batch of the same shape."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bench.clock import now, take_peak
from bench.job import Job
from bench.recipe import step_config
from whet.batching import packed, passes, take
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import read_tokens
from whet.records import Sequences
from whet.train.setup.build import Parts, build_parts


def measure(job: Job) -> dict[str, Any]:
    """One optimizer step on random tokens, `runs` times, with a look at the clock between its parts."""
    with TemporaryDirectory() as name:
        config = step_config(job, Path(name))
    world = World.init(config.device)
    parts = build_parts(config, world)
    sequences = random_sequences(job, parts.policy.vocab_size, world.device)
    runs = []
    for _ in range(job.runs):
        take_peak(world.device)
        seconds = _one(parts, config, sequences, job.workload.group, world.device)
        runs.append({"seconds": sum(seconds.values()), "breakdown": seconds, "peak_bytes": take_peak(world.device)})
    return {"runs": runs}


def random_sequences(job: Job, vocab_size: int, device: torch.device) -> Sequences:
    """Rollouts as the loop would have them: the samples of a group begin with the same prompt."""
    generator = torch.Generator().manual_seed(0)
    (_, prompt), (_, new) = job.workload.prompt_tokens, job.workload.new_tokens
    prompts = torch.randint(vocab_size, (job.workload.prompts, prompt), generator=generator)
    completions = torch.randint(vocab_size, (job.workload.sequences, new), generator=generator)
    tokens = torch.cat([prompts.repeat_interleave(job.workload.group, dim=0), completions], dim=1)
    return Sequences(
        tokens=tokens.to(device),
        mask=(torch.arange(prompt + new) >= prompt).expand(tokens.shape).to(device),
        lengths=torch.full((len(tokens),), prompt + new, device=device),
    )


def _one(
    parts: Parts, config: OnlineConfig, sequences: Sequences, group: int, device: torch.device
) -> dict[str, float]:
    seconds = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    prompts = torch.arange(len(sequences.lengths), device=device) // group
    weight = 1 / float(sequences.mask.sum())
    for rows in passes(sequences, prompts, config.update, parts.policy):
        started = now(device)
        loss = loss_of(parts, config, take(sequences, rows), prompts[rows], weight)
        middle = now(device)
        torch.autograd.backward(loss)
        seconds["forward"] += middle - started
        seconds["backward"] += now(device) - middle
    started = now(device)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    seconds["optimizer"] = now(device) - started
    return seconds


def loss_of(parts: Parts, config: OnlineConfig, few: Sequences, prompts: Tensor, weight: float) -> Tensor:
    """The loss of rows that are read together: the mean log-prob, where each token has this weight."""
    packing = packed(few, prompts, config.update)
    with autocast(few.tokens.device):
        reading = read_tokens(parts.policy, few.tokens, few.lengths, few.mask, config.rollout.sampling, packing=packing)
    return -(reading.logprobs * weight).sum()
