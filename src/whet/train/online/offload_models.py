"""Decides which models of an online run are offloaded to the host while others are at work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from whet.tasks.protocol import Grader
from whet.train.online.learner import Learner
from whet.train.setup.grader import ModelGrader
from whet.train.setup.offloading import OffloadedModels, moments, size_of, to_offload, weights

ADAM = 2  # moments, each as large as the weights that are trained


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadCandidate:
    """A model that may be offloaded, and whether its weights are frozen."""

    model: nn.Module
    is_frozen: bool


def build_offloading(learner: Learner, grader: Grader) -> OffloadedModels:
    """Offloads models and optimizer moments as the recipe says, or where they would not fit on the GPU together."""
    device = learner.world.device
    if device.type != "cuda":  # the device's memory is the host's
        return OffloadedModels({})
    found = offload_candidates(learner, grader)
    trained = sum(size_of(group["params"]) for one in learner.every_optimizer for group in one.param_groups)
    own = size_of(learner.policy.parameters())
    away = to_offload(
        learner.config.offload,
        {**{name: size_of(one.model.parameters()) for name, one in found.items()}, "optimizer": ADAM * trained},
        resident=own + own + trained,  # weights; as much for their bf16 copy and the engine's buffers; gradients
        memory=torch.cuda.get_device_properties(device).total_memory,
    )
    offloaded = {
        name: weights(found[name].model, device, is_frozen=found[name].is_frozen) for name in away & found.keys()
    }
    return OffloadedModels(
        offloaded | ({"optimizer": moments(learner.every_optimizer, device)} if "optimizer" in away else {})
    )


def offload_candidates(learner: Learner, grader: Grader) -> dict[str, OffloadCandidate]:
    """The reference, the reward model and the critic, as far as they are models of their own."""
    found: dict[str, OffloadCandidate] = {}
    reference, critic = learner.reference, learner.critic
    if reference is not None and isinstance(reference.model, nn.Module):
        found["reference"] = OffloadCandidate(model=reference.model, is_frozen=reference.sync_steps is None)
    if isinstance(grader, ModelGrader):
        found["reward"] = OffloadCandidate(model=grader.model, is_frozen=True)
    if critic is not None and critic.trunk is not None:
        found["critic"] = OffloadCandidate(model=critic, is_frozen=False)
    return found
