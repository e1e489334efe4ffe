"""A spread model in a group of one process: `python -m tests.distributed.spread_alone cpu|cuda [offload]`.

One GPU is enough to run what several would: gathered weights in bf16, the sampler's copy, offloading to host memory.
Prints as JSON how far the gradient is from that of a whole model, and the sampler's log-probs from the trainer's,
before and after an optimizer step.
"""

import copy
import json
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.spread_ranks import Gradient, apart, whole_gradients
from tests.small import small_model
from whet.batching import collate
from whet.config import OptimizerConfig
from whet.distributed.fsdp2 import FSDP2
from whet.distributed.world import World
from whet.engines.native.native_engine import NativeEngine
from whet.models.layers.decoder_config import autocast
from whet.models.layers.packing import pack
from whet.models.logprobs import read_tokens
from whet.records import Prompt, Sampling
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.spreading.spread_models import held, sampling_engine

SAMPLING = Sampling(max_tokens=12)
ROWS = [[1, 5, 9, 3, 7, 2, 8], [1, 5, 9, 4, 4, 6], [2, 3, 11, 12]]


def gradient(policy: Any, world: World) -> Gradient:
    s = collate(ROWS, [[place > 1 for place in range(len(row))] for row in ROWS], world.device)
    packing = pack(s.tokens, s.mask, torch.zeros(len(ROWS), dtype=torch.int64, device=world.device))
    for _ in world.sharding.evened([0], policy):
        with autocast(world.device):
            reading = read_tokens(policy, s.tokens, s.lengths, s.mask, SAMPLING, packing=packing)
        (reading.logprobs.sum() / 9).backward()
    world.sharding.clip(list(policy.parameters()), 1e9)
    return whole_gradients(policy, world)


@torch.no_grad()
def mismatch(engine: Any, policy: Any, world: World) -> float:
    """Of the log-probs of sampled tokens, at most."""
    prompts = [Prompt(tokens=tuple(row[:3]), stream=(n,)) for n, row in enumerate(ROWS)]
    groups = engine.generate(prompts, SAMPLING, count=2)
    pairs = [(prompt.tokens, one) for prompt, group in zip(prompts, groups, strict=True) for one in group]
    tokens = [[*prompt, *one.tokens] for prompt, one in pairs]
    s = collate(tokens, [[place >= 3 for place in range(len(row))] for row in tokens], world.device)
    worst = 0.0
    for _ in world.sharding.evened([0], policy):
        with autocast(world.device):
            read = read_tokens(policy, s.tokens, s.lengths, s.mask, SAMPLING).logprobs
        for row, (_, one) in zip(read.tolist(), pairs, strict=True):
            seen = row[3 : 3 + len(one.logprobs)]
            worst = max(worst, *(abs(a - b) for a, b in zip(seen, one.logprobs, strict=True)))
    return worst


def main(device: str, *, cpu_offload: bool) -> dict[str, float]:
    place = torch.device(device)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = World(rank=0, size=1, device=place)
    spread = replace(world, spread_by=FSDP2(world, replicas=1, cpu_offload=cpu_offload))
    model, tokenizer = small_model(width=256, sharp=2.0)
    whole, policy = held(copy.deepcopy(model), world), held(model, spread)
    found = {"gradient": apart(gradient(whole, world), gradient(policy, spread))}
    native = partial(NativeEngine, tokenizer=tokenizer, device=place, dtype=torch.bfloat16)
    engine = sampling_engine(policy, spread, torch.bfloat16, native)
    optimizer = make_optimizer(policy, OptimizerConfig(lr=1e-2))
    engine.sync(policy, version=0)
    found["mismatch before"] = mismatch(engine, policy, spread)
    optimizer.step()
    found["stale"] = mismatch(engine, policy, spread)
    engine.sync(policy, version=1)
    found["mismatch after"] = mismatch(engine, policy, spread)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    json.dump(main(sys.argv[1], cpu_offload="offload" in sys.argv), sys.stdout)
