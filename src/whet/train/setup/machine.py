"""Machine and library versions for the final results, and settings of the C allocator."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import torch
import transformers

import whet
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


def versions() -> dict[str, str]:
    """Library versions that matter for results."""
    return {"whet": whet.__version__, "torch": torch.__version__, "transformers": transformers.__version__}


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
NEVER = 2**31 - 1  # bytes: the largest allowed value


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next tensor instead of returning it to the system; returns whether that is possible.

    Every step frees and allocates as much as weights, gradients and activations need. The system zeroes new pages on
    first use, which on a CPU takes a tenth of an update.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, NEVER)) and bool(mallopt(MMAP_THRESHOLD, NEVER))
