"""One of two processes that share a model: `RANK=… python -m tests.plan.spread_bytes`.

Rank 0 prints, as JSON, the bytes that it holds of each kind of model, moment by moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.distributed.spread_alone import gradient
from tests.small import small_model
from whet.config import OptimizerConfig
from whet.distributed.sharding import is_spread, local
from whet.distributed.world import World
from whet.engines.native.native_engine import NativeEngine
from whet.models.adapters.lora import LoRAShape, attach
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.spreading.spread_models import held, sampling_engine, second_model

FAMILIES = ("llama", "qwen3", "olmoe")
ADAPTERS = LoRAShape(rank=2, alpha=4.0, targets=("q_proj", "down_proj"))
VOCABULARY = 32  # rows that two processes divide evenly


def size(tensors: Iterable[Tensor]) -> int:
    return sum(local(tensor).nbytes for tensor in tensors)


def measured(family: str, world: World, *, adapters: bool) -> dict[str, int]:
    policy, tokenizer = small_model(family, vocab=VOCABULARY)
    if adapters:
        attach(policy, ADAPTERS, seed=0)
    policy = held(policy, world)
    found = {"weights": size(policy.parameters()), "reference": size(second_model(policy, world).parameters())}
    engine: Any = sampling_engine(policy, world, torch.float32, partial(NativeEngine, tokenizer=tokenizer))
    found["sampler"] = size(engine._own.parameters())
    engine.sync(policy, version=0)
    block, whole = policy.model.layers[1], []
    for name in ("forward", "matrices"):  # both are called while the block is whole
        setattr(block, name, _watched(getattr(block, name), policy, whole))
    gradient(policy, world)
    found["whole in a block"] = max(whole)
    trained = [one for one in policy.parameters() if one.requires_grad]
    found["gradients"] = size(one.grad for one in trained if one.grad is not None)
    optimizer = make_optimizer(policy, OptimizerConfig())
    world.sharding.clip(trained, 1.0)
    optimizer.step()
    moments = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    return {**found, "state": size(moments)}


def _watched(method: Any, policy: Any, whole: list[int]) -> Any:
    def watched(*arguments: Any, **named: Any) -> Any:
        matrices = [one for name, one in policy.named_parameters() if one.dim() > 1 and not _is_small(name)]
        whole.append(size(one for one in matrices if not is_spread(one)))
        return method(*arguments, **named)

    return watched


def _is_small(name: str) -> bool:
    return "lora_" in name or name.endswith("mlp.gate.weight")  # a router


def main() -> None:
    world = World.init("cpu").sharded("fsdp2")
    found = {
        f"{family}{', adapters' if adapters else ''}": measured(family, world, adapters=adapters)
        for family in FAMILIES
        for adapters in (False, True)
        if not (adapters and family == "olmoe")
    }
    if world.is_writer:
        print(json.dumps(found))
    world.close()


if __name__ == "__main__":
    main()
