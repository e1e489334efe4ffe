"""How memory that was freed is used again: by the C library on a CPU, by torch's caching allocator on a GPU."""

from __future__ import annotations

import ctypes
import os
import platform

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
NEVER = 2**31 - 1  # bytes: the largest allowed value
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments"


def set_up_allocator(device: torch.device, *, expandable: bool = True) -> None:
    """To be called before the first large tensor. `expandable`: see `use_expandable_segments`."""
    if device.type == "cpu":
        keep_freed_memory()
    elif device.type == "cuda" and expandable:
        use_expandable_segments()


def keep_freed_memory() -> bool:
    """Keeps freed memory for the next tensor instead of returning it to the system; returns whether that is possible.

    Every step frees and allocates as much as weights, gradients and activations need. The system zeroes new pages on
    first use, which on a CPU takes a tenth of an update.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, NEVER)) and bool(mallopt(MMAP_THRESHOLD, NEVER))


def use_expandable_segments() -> bool:
    """Lets torch's allocator grow its segments, unless an environment variable already says what it should do.

    Rollouts, scoring and updates allocate tensors of other sizes each. Fixed segments that one of them leaves free are
    too small for the next, so up to a third of the memory was reserved and unused. vLLM's sleep mode does not work
    with expandable segments when it runs in the same process.
    """
    if any(EXPANDABLE in os.environ.get(name, "") for name in ALLOCATOR_VARIABLES):
        return False
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # there is no public name at run time
    if change is None:
        return False
    change(f"{EXPANDABLE}:True")
    return True
