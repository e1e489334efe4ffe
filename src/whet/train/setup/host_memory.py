"""Settings of the C allocator: freed memory is kept for the next step."""

from __future__ import annotations

import ctypes
import platform

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
