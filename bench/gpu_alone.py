"""One measurement at a time: benchmarks that were started together prepare together and measure one after the other."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def gpu_alone(device: torch.device) -> Iterator[None]:
    """Waits until no other benchmark of this machine measures on the GPU; nothing to wait for on a CPU."""
    if device.type != "cuda":
        yield
        return
    with (Path(tempfile.gettempdir()) / "whet-bench-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # the next one needs the memory
