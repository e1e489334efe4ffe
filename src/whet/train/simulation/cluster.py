"""GPUs in nodes, and the seconds of what they send each other.

Bandwidths are those of data sheets, per GPU and direction, of which a share is reached; nothing here was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log2

from whet.train.plan.gpus import GPU

REACHED = 0.8  # share of a link's bandwidth that collective operations reach
LATENCY = 5e-6  # seconds of a collective operation for each doubling of the GPUs
NODE = 8  # GPUs of a node
NVLINK, INFINIBAND, ETHERNET = {"h200": 450e9, "h100": 450e9, "a100-80": 300e9, "a100-40": 300e9}, 50e9, 12.5e9
OLDER = {"a100-80": 25e9, "a100-40": 25e9}  # networks of their nodes, as usually built


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """GPUs of one kind; bandwidths in bytes a second per GPU, one way."""

    gpu: GPU
    link: float  # between GPUs of a node
    network: float  # between nodes
    node: int = NODE

    def bandwidth(self, gpus: int, senders: int | None = None) -> float:
        """What a ring over so many GPUs reaches; `senders` GPUs of a node share its network, else all of them."""
        if gpus <= 1:
            return inf
        if gpus <= self.node:
            return REACHED * self.link
        return REACHED * min(self.link, self.network * min(self.node, senders or self.node))

    def gathered(self, size: float, gpus: int) -> float:
        """Seconds until all GPUs have what each of them has a part of (all-gather), or the reverse (reduce-scatter)."""
        return 0.0 if gpus <= 1 else size * (gpus - 1) / gpus / self.bandwidth(gpus) + LATENCY * log2(gpus)

    def reduced(self, size: float, gpus: int) -> float:
        """Seconds until all GPUs have the sum of what each of them has (all-reduce)."""
        return 2 * self.gathered(size, gpus)

    def sent(self, size: float, gpus: int) -> float:
        """Seconds until other GPUs, so many with the sender, have what one GPU has (broadcast, pipelined)."""
        return 0.0 if gpus <= 1 else size / self.bandwidth(gpus, senders=1) + LATENCY * log2(gpus)


def cluster_of(gpu: GPU, *, network: float | None = None, node: int = NODE) -> Cluster:
    """A cluster of these GPUs: NVLink where the kind has it, else PCIe; `network` replaces the usual one."""
    has_nvlink = gpu.name in NVLINK
    usual = OLDER.get(gpu.name, INFINIBAND) if has_nvlink else ETHERNET
    return Cluster(gpu=gpu, link=NVLINK.get(gpu.name, gpu.host_bandwidth), network=network or usual, node=node)


def joined(gpu: GPU, count: int) -> GPU:
    """Several GPUs that share every product, as one (tensor or sequence parallel)."""
    if count == 1:
        return gpu
    return replace(
        gpu,
        memory=count * gpu.memory,
        bandwidth=count * gpu.bandwidth,
        flops=count * gpu.flops,
        host_bandwidth=count * gpu.host_bandwidth,
    )
