"""Seconds and bytes of a device."""

from __future__ import annotations

import time

import torch


def now(device: torch.device) -> float:
    """Seconds, when the device has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def take_peak(device: torch.device) -> int | None:
    """The most bytes allocated since the last call; None where the device does not count."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def device_bytes(device: torch.device) -> int | None:
    """Bytes that all processes have taken of the device, caches included; None where the device does not count."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return total - free
