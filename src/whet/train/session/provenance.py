"""The machine that a run was made on, and the processes that hold its models."""

import platform
from typing import Any

import torch

from whet.config.loops import Acting, Trained
from whet.distributed.world import World


def machine(world: World) -> dict[str, Any]:
    """Hardware, as far as it matters for speed."""
    cuda = world.device.type == "cuda"
    return {
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if cuda else platform.machine(),
        "processes": world.size,
    }


def processes_line(config: Trained, world: World) -> list[str]:
    """How many processes train, and how they hold the models; nothing of one that the recipe does not spread."""
    if isinstance(config, Acting):  # runs in one process
        return []
    how = config.distributed
    if world.size == 1:
        alone = f"processes: 1, which holds whole models; distributed.sharding={how.sharding} takes several (torchrun)"
        return [] if how.sharding == "none" else [alone]
    if not world.sharding.is_sharded:
        return [f"processes: {world.size}, each with whole models and its share of every step"]
    groups = f", in {how.replicas} groups with whole models each" if how.replicas > 1 else ""
    host = ", weights and moments in host memory" if how.cpu_offload else ""
    return [f"processes: {world.size}, models spread over them by {how.sharding}{groups}{host}"]
