"""Which models of an online run take turns on its GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from whet.tasks.protocol import Grader
from whet.train.online.learner import Learner
from whet.train.setup.grader import ModelGrader
from whet.train.setup.offloading import Guests, moments, size_of, waiting, weights

ADAM = 2  # moments, each as large as the weights that are trained


@dataclass(frozen=True, kw_only=True, slots=True)
class Lodger:
    """A model that could wait, and whether its weights stay as they are."""

    model: nn.Module
    is_frozen: bool


def build_guests(learner: Learner, grader: Grader) -> Guests:
    """Those of the run's models, and the moments, that wait in the host's memory for their turn."""
    device = learner.world.device
    if device.type != "cuda":  # the device's memory is the host's
        return Guests({})
    found = lodgers(learner, grader)
    trained = sum(size_of(group["params"]) for one in learner.every_optimizer for group in one.param_groups)
    own = size_of(learner.policy.parameters())
    away = waiting(
        learner.config.placement,
        {**{name: size_of(one.model.parameters()) for name, one in found.items()}, "optimizer": ADAM * trained},
        always=own + own + trained,  # weights, two copies in bf16 (of the engine and of passes), gradients
        memory=torch.cuda.get_device_properties(device).total_memory,
    )
    guests = {name: weights(found[name].model, device, is_frozen=found[name].is_frozen) for name in away & found.keys()}
    return Guests(guests | ({"optimizer": moments(learner.every_optimizer, device)} if "optimizer" in away else {}))


def lodgers(learner: Learner, grader: Grader) -> dict[str, Lodger]:
    """The reference, the reward model and the critic, as far as they are models of their own."""
    found: dict[str, Lodger] = {}
    reference, critic = learner.reference, learner.critic
    if reference is not None and isinstance(reference.model, nn.Module):
        found["reference"] = Lodger(model=reference.model, is_frozen=reference.sync_steps is None)
    if isinstance(grader, ModelGrader):
        found["reward"] = Lodger(model=grader.model, is_frozen=True)
    if critic is not None and critic.trunk is not None:
        found["critic"] = Lodger(model=critic, is_frozen=False)
    return found
