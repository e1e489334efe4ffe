"""What a recipe's `asynchronous.pool` and `asynchronous.hand_off` stand for: where workers live, how weights travel."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from whet.config.parts import AsynchronousConfig
from whet.distributed.world import World
from whet.models.protocol import CausalLM
from whet.train.rollout_pool.hand_off import WeightFiles
from whet.train.rollout_pool.orders import WorkerSetup
from whet.train.rollout_pool.schedule import useful_workers
from whet.train.rollout_pool.ticket_pool import Worker

LOOPBACK = "127.0.0.1"


class WeightsOut(Protocol):
    """How the weights of a version leave the trainer."""

    def publish(self, policy: CausalLM, version: int, world: World) -> tuple[str, str] | None:
        """By all ranks of a spread policy; file and seal on the one that writes."""
        ...

    def keep(self, versions: Collection[int]) -> None:
        """Drops all others."""
        ...

    def connected(self, worker: Any) -> Worker:
        """The worker with what it needs to take weights."""
        ...

    def close(self) -> None:
        """Before the workers are ended."""
        ...


def weights_out(settings: AsynchronousConfig, directory: Path, device: torch.device) -> WeightsOut:
    """`device`: of the trainer."""
    if settings.hand_off == "files":
        return WeightFiles(directory)
    from whet.train.rollout_pool.broadcasts import WeightBroadcasts
    from whet.train.rollout_pool.ray_worker import own_address

    host = own_address if settings.pool == "ray" else lambda: LOOPBACK
    return WeightBroadcasts(host, device, seconds=settings.hand_off_seconds)


def worker_maker(
    settings: AsynchronousConfig, setup: WorkerSetup, directory: Path, others: Sequence[str]
) -> tuple[Callable[[int], Worker], Callable[[], None]]:
    """What makes the worker of a number, and what leaves the place where they live; `others` are devices of models."""
    if settings.pool == "ray":
        from whet.train.rollout_pool.ray_worker import RayWorker, join_cluster

        most = useful_workers(settings.workers, settings.staleness, settings.parts)
        leave = join_cluster(max(os.cpu_count() or 1, most * setup.threads))
        own = (
            setup if setup.device == "cpu" else replace(setup, device=f"{setup.device}:0")
        )  # Ray shows an actor its own
        return lambda number: RayWorker(number, own, limit_seconds=settings.ticket_seconds), leave
    from whet.train.rollout_pool.local_worker import LocalWorker, worker_device

    def local(number: int) -> Worker:
        own = replace(setup, device=worker_device(setup.device, number, others))
        return LocalWorker(number, own, answers=directory, limit_seconds=settings.ticket_seconds)

    return local, lambda: None
