"""What a device did during a call, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MOST = 16  # kernels that are named; the others are summed up


def kernel_times(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Seconds and number of runs of the kernels that took longest during `call`, on a CUDA device."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return longest({event.key: (event.count, 1e-6 * event.self_device_time_total) for event in seen.key_averages()})


def longest(times: dict[str, tuple[int, float]], most: int = MOST) -> list[dict[str, Any]]:
    """Name → (runs, seconds), as rows in falling order; the last row sums up what is not named."""
    ordered = sorted(times.items(), key=lambda item: -item[1][1])
    rows = [{"kernel": name, "runs": runs, "seconds": seconds} for name, (runs, seconds) in ordered[:most]]
    others = [timed for _, timed in ordered[most:]]
    if others:
        runs, seconds = sum(runs for runs, _ in others), sum(seconds for _, seconds in others)
        rows.append({"kernel": f"{len(others)} others", "runs": runs, "seconds": seconds})
    return rows
