"""One of several processes whose models DeepSpeed's ZeRO-3 spreads.

`RANK=… … python -m tests.distributed.zero3_ranks DIRECTORY [LOSS …]` takes the losses of `spread_ranks`.
Rank 0 prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.contracts.additive import ALONE, Scene
from tests.distributed.spread_ranks import (
    FAMILIES,
    Found,
    apart,
    compared,
    gradients,
    online_gradient,
    saved_alike,
)
from tests.small import small_model
from whet.config import OptimizerConfig
from whet.distributed.sharding import is_spread
from whet.distributed.world import World
from whet.distributed.zero3 import ZeRO3
from whet.train.optimizers.optimizer import descend, make_optimizer
from whet.train.spreading.spread_models import held, second_model

STEPS = 3


class Averaging(ZeRO3):
    """As DeepSpeed's engine does."""

    def _scattered(self, rows: Tensor) -> Tensor:
        return super()._scattered(rows) / self._world.size


def stepped(world: World, *, recompute: bool = False) -> dict[str, Tensor]:
    """The weights after a few steps with clipping, and those of a copy that was made between two of them."""
    policy: Any = held(small_model(sharp=2.0)[0], world)
    policy.gradient_checkpointing = recompute
    optimizer = make_optimizer(policy, OptimizerConfig(lr=1e-2))
    generator, copy = torch.Generator().manual_seed(4), policy
    for step in range(STEPS):
        tokens = torch.randint(0, policy.vocab_size, (4, 9), generator=generator)
        mine = tokens[world.rank :: world.size]
        if step == 1 and world.sharding.is_sharded:
            copy = second_model(policy, world)
        losses = (
            policy(rows, torch.tensor([9])).log_softmax(-1)[..., 0].sum() / 36
            for rows in world.sharding.evened(mine.split(1), policy)
        )
        descend(losses, [optimizer], world, max_grad_norm=0.1)
        with torch.no_grad():  # prefetching learns the order of another pass, and nothing of it stays whole
            for _ in world.sharding.evened([0], policy):
                policy(tokens, torch.full((4,), 9))
    found = {name: world.sharding.whole(p.detach()).clone() for name, p in policy.named_parameters()}
    assert not world.sharding.is_sharded or apart(found, _weights(copy, world)) > 1e-3
    return found


def _weights(model: Any, world: World) -> dict[str, Tensor]:
    return {name: world.sharding.whole(p.detach()) for name, p in model.named_parameters()}


def kept(world: World) -> Found:
    """Of a spread model: the share of its matrices' bytes on this rank, before, between and after passes."""
    policy: Any = held(small_model("olmoe")[0], world)
    sharding: Any = world.sharding
    matrices = [p for p in policy.parameters() if is_spread(p)]
    state = sharding._held[policy]

    def whole_bytes() -> int:
        wholes = [*state.blocks.parameters(), *(root.whole for root in state.roots)]
        return sum(one.numel() * one.element_size() for one in wholes)

    seen = [whole_bytes()]
    for _ in range(STEPS):
        policy.hidden(torch.tensor([[1, 2, 3]]), torch.tensor([3])).sum().backward()
        seen.append(whole_bytes())
    own = sum(p.to_local().numel() for p in matrices) / sum(p.numel() for p in matrices)  # type: ignore[attr-defined]
    return {"matrices": len(matrices), "own": own, "whole bytes": seen}


def main() -> Found:
    place, names = Path(sys.argv[1]), sys.argv[2:]
    world = World.init("cpu")
    worlds = world, world.sharded("zero3")
    found: Found = {}
    for name, gradient, one_pass in gradients(place):
        if name in names:
            found[name] = compared(gradient, worlds, one_pass=one_pass)
            if name in FAMILIES and world.is_writer:
                found[name]["saved_alike"] = saved_alike(place, name, worlds[1])
    found["kept"] = kept(worlds[1])
    found["averaged"] = apart(
        online_gradient(Scene("grpo"), ALONE),
        online_gradient(Scene("grpo"), replace(world, spread_by=Averaging(world))),
    )
    for recompute in (False, True):
        steps = partial(stepped, recompute=recompute)
        found["steps, recomputed" if recompute else "steps"] = apart(steps(ALONE), steps(worlds[1]))
    world.barrier()
    world.close()
    return found


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # DeepSpeed prints
        result = main()
    if os.environ["RANK"] == "0":
        json.dump(result, sys.stdout)
        sys.stdout.flush()
