"""The machine: its description for the final results, and the C allocator's settings."""

from __future__ import annotations

import ctypes
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


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
NEVER = 2**31 - 1  # bytes: the most that it takes


def keep_freed_memory() -> bool:
    """Has freed memory kept for the next tensor instead of given back to the system; whether the C library can.

    Every step frees and takes again as much as weights, gradients and activations need. Pages that are new are filled
    with zeros one by one when they are first written, which on a CPU is a tenth of an update.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, NEVER)) and bool(mallopt(MMAP_THRESHOLD, NEVER))
