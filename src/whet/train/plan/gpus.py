"""GPUs by name: memory, bandwidth, arithmetic, typical price. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from whet.errors import UserError

GIBI = 2**30
UNITS = {"": 1, "b": 1, "gb": 10**9, "gib": GIBI, "g": 10**9, "mib": 2**20, "mb": 10**6}
LARGEST = 2**60  # of the number before a unit
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class GPU:
    """One GPU, as its data sheet has it."""

    name: str
    memory: int  # bytes, as the driver reports them
    bandwidth: float  # bytes a second of its memory
    flops: float  # dense bf16 products with fp32 sums, a second
    host_bandwidth: float  # bytes a second to and from pinned host memory, one way
    price: float  # US dollars an hour, typical of rented ones; `--price` replaces it


# Memory is what CUDA reports as total, in GiB; prices are round figures of on-demand clouds, to be replaced by yours.
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU(name="h200", memory=int(139.8 * GIBI), bandwidth=4.8e12, flops=989e12, host_bandwidth=50e9, price=3.5),
        GPU(name="h100", memory=int(79.1 * GIBI), bandwidth=3.35e12, flops=989e12, host_bandwidth=50e9, price=2.5),
        GPU(name="a100-80", memory=int(79.1 * GIBI), bandwidth=2.04e12, flops=312e12, host_bandwidth=24e9, price=1.6),
        GPU(name="a100-40", memory=int(39.4 * GIBI), bandwidth=1.56e12, flops=312e12, host_bandwidth=24e9, price=1.2),
        GPU(name="l40s", memory=int(44.4 * GIBI), bandwidth=0.86e12, flops=362e12, host_bandwidth=24e9, price=0.9),
        GPU(name="a6000", memory=int(47.4 * GIBI), bandwidth=0.77e12, flops=155e12, host_bandwidth=24e9, price=0.5),
        GPU(name="5090", memory=int(31.4 * GIBI), bandwidth=1.79e12, flops=209e12, host_bandwidth=50e9, price=0.7),
        GPU(name="4090", memory=int(23.5 * GIBI), bandwidth=1.01e12, flops=165e12, host_bandwidth=24e9, price=0.4),
        GPU(name="3090", memory=int(23.6 * GIBI), bandwidth=0.94e12, flops=71e12, host_bandwidth=24e9, price=0.2),
    )
}
DEFAULT = "h200"
LEAST = 2**28  # bytes; less is a misread name
NEARLY = 0.95  # a GPU sold with 24 GiB reports 23.5


def find_gpu(text: str) -> GPU:
    """A GPU of the table, or one with so much memory (`24GiB`, `48GB`, a number of bytes).

    The other figures of the latter are those of the smallest GPU of the table that has as much memory.
    """
    name = text.strip().lower().removeprefix("rtx").strip(" -_")
    if name in GPUS:
        return GPUS[name]
    match = SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in UNITS or not 0 < float(match[1]) < LARGEST:
        raise UserError(f"unknown GPU {text!r}: choose one of {', '.join(GPUS)}, or give its memory, e.g. 24GiB")
    memory = int(float(match[1]) * UNITS[match[2].lower()])
    if memory < LEAST:
        raise UserError(
            f"unknown GPU {text!r}, and as a size it is {memory:,} bytes: choose one of {', '.join(GPUS)}, or give its "
            "memory with a unit, e.g. 24GiB"
        )
    return replace(like(memory), name=text.strip(), memory=memory)


def like(memory: int) -> GPU:
    """The GPU of the table with the least memory that is as much, or nearly; else the largest."""
    ordered = sorted(GPUS.values(), key=lambda gpu: gpu.memory)
    return next((gpu for gpu in ordered if gpu.memory >= NEARLY * memory), ordered[-1])


def detected(name: str, memory: int) -> GPU:
    """The GPU of a machine by what its driver calls it, with its own memory: that of the table, else one like it."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    alike = [gpu for gpu in GPUS.values() if gpu.name.partition("-")[0] in words]
    nearest = min(alike, key=lambda gpu: abs(gpu.memory - memory), default=None)
    return replace(nearest or like(memory), name=name if nearest is None else nearest.name, memory=memory)
