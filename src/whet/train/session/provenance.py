"""The machine that a run was made on."""

import platform
from typing import Any

import torch

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
