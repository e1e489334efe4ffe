"""Models on the device of a run, whole or spread over its ranks, as `distributed.sharding` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from whet.distributed.world import World
from whet.engines.engine_protocol import Engine
from whet.engines.native.gathering_engine import GatheringEngine
from whet.errors import UserError
from whet.models.adapters.lora import copied, has_adapters
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.mlp import Router
from whet.models.half_precision import halve
from whet.models.protocol import CausalLM
from whet.models.reward.reward_model import RewardModel

M = TypeVar("M")


def held(model: M, world: World) -> M:
    """A model that every rank has loaded, on the device of the run: whole, or spread over all ranks."""
    assert isinstance(model, nn.Module)
    if not world.sharding.is_sharded:
        return model.to(world.device)
    trunk = model.trunk if isinstance(model, RewardModel) else model
    if not isinstance(trunk, Decoder):
        raise UserError(
            "distributed.sharding spreads the families of whet's own decoder, and transformers runs this model: use a "
            "model of another family (docs/models.md lists them), or leave distributed.sharding out"
        )
    world.sharding.spread(trunk, list(trunk.model.layers), kept=_kept(trunk))
    trunk.model.joined.are_spread = True
    if isinstance(model, RewardModel):
        model.head.to(world.device)  # a vector for each class
    return model


def second_model(model: M, world: World | None) -> M:
    """A copy of a model, held as the first is; of whole ones with adapters, a copy of these on the same weights."""
    if world is None or not world.sharding.is_sharded:
        return copied(model)
    assert isinstance(model, Decoder)
    second = world.sharding.another(model)
    second.model.joined.are_spread = True
    second.gradient_checkpointing = model.gradient_checkpointing  # may have been set since the first was spread
    return second


def _kept(trunk: Decoder) -> list[str]:
    """Matrices in fp32 on every rank: routers, whose choices rounding would change, and adapters, which are small."""
    trained = [name for name, p in trunk.named_parameters() if p.requires_grad] if has_adapters(trunk) else []
    return [*trained, *(f"{name}.weight" for name, module in trunk.named_modules() if isinstance(module, Router))]


def sampling_engine(policy: CausalLM, world: World, dtype: torch.dtype, make: Callable[[Any], Engine]) -> Engine:
    """The engine that `make` gives: of the policy itself, or of a whole copy on this rank where the policy is spread.

    On a GPU the copy's matrices are in `dtype`.
    """
    if not world.sharding.is_sharded:
        return make(policy)
    own: Any = world.sharding.unsharded(policy)
    if world.device.type == "cuda" and dtype is torch.bfloat16:
        halve(own, trained=not has_adapters(own))
    own = own.to_empty(device=world.device)
    return GatheringEngine(make(own), own, world.sharding.whole)
