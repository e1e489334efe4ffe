"""The machine and the library versions of a run, for its final results."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

import whet
from whet.distributed.world import World


def machine(world: World) -> dict[str, Any]:
    """The computer, as far as it matters for speed."""
    cuda = world.device.type == "cuda"
    return {
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if cuda else platform.machine(),
        "processes": world.size,
    }


def versions() -> dict[str, str]:
    """The libraries, as far as they matter for results."""
    return {"whet": whet.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
