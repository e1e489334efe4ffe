"""A worker as a Ray actor, on any node of a cluster. Ray is imported here alone, and only when a recipe names it.

Orders travel as JSON and answers as the bytes of a safetensors file; weights through a directory that all nodes see,
or by broadcast.
Ray ends the actors when the trainer is gone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from whet.errors import RunFailed, UserError
from whet.imports import optional_package
from whet.train.rollout_pool.orders import Order, WorkerSetup
from whet.train.rollout_pool.ticket_pool import NoPlace, WorkerLost

if TYPE_CHECKING:
    from whet.train.rollout_pool.broadcasts import Offer
    from whet.train.rollout_pool.sampler import Sampler

PLACE_SECONDS = 300.0  # to find a node with room
LOOK_SECONDS = 1.0  # how often a worker that waits for a place looks whether it is still wanted
LOAD_SECONDS = 600.0  # the least that an actor is given to import torch and read a model there
SHOWN = 300  # characters of Ray's message
ANSWER, FAILED, MISSED = b"+", b"-", b"?"  # first byte of a reply
ADDRESS = "RAY_ADDRESS"


class SamplerActor:
    """Lives in the actor's process. Replies are bytes, so that no exception is pickled."""

    def __init__(self, setup: str) -> None:
        self._setup = WorkerSetup(**json.loads(setup))
        self._sampler: Sampler | None = None

    def placed(self) -> bytes:
        return ANSWER

    def ready(self) -> bytes:
        return self._reply(lambda: b"")

    def sample(self, order: str) -> bytes:
        return self._reply(lambda: self._built().sample(Order.unpacked(json.loads(order))))

    def receive(self, offer: str) -> bytes:
        from whet.distributed.weight_broadcast import Missed
        from whet.train.rollout_pool.broadcasts import Offer

        def received() -> bytes:
            self._built().receive(Offer.unpacked(json.loads(offer)))
            return b""

        try:
            return self._reply(received)
        except Missed as error:
            return MISSED + str(error).encode()

    def _built(self) -> Sampler:
        from whet.train.rollout_pool.sampler import Sampler

        self._sampler = self._sampler or Sampler(self._setup)
        return self._sampler

    def _reply(self, answer: Callable[[], bytes]) -> bytes:
        try:
            self._built()
            return ANSWER + answer()
        except (UserError, RunFailed) as error:
            return FAILED + str(error).encode()


class RayWorker:
    """An actor of its own; lost when Ray says so, or when an order takes longer than its limit."""

    def __init__(self, number: int, setup: WorkerSetup, *, limit_seconds: float) -> None:
        self._number, self._setup, self._limit = number, setup, limit_seconds
        self._actor: Any = None
        self._is_ended = False

    @property
    def name(self) -> str:
        return "not started" if self._actor is None else f"Ray actor {self._actor._actor_id.hex()}"

    @property
    def last_output(self) -> str:
        return "" if self._actor is None else f"see `ray logs actor --id {self._actor._actor_id.hex()}`"

    def start(self) -> None:
        import ray

        gpus = 1 if self._setup.device.startswith("cuda") else 0
        threads = {"OMP_NUM_THREADS": str(self._setup.threads)}
        actor = ray.remote(SamplerActor).options(
            num_cpus=self._setup.threads, num_gpus=gpus, max_restarts=0, runtime_env={"env_vars": threads}
        )
        self._actor = actor.remote(json.dumps(asdict(self._setup)))
        placed, deadline = self._actor.placed.remote(), time.monotonic() + PLACE_SECONDS
        while not ray.wait([placed], timeout=LOOK_SECONDS)[0]:
            if self._is_ended:
                raise WorkerLost("was ended before it had a place")
            if time.monotonic() > deadline:
                free = f"{self._setup.threads} free CPUs and {gpus} GPUs"
                raise NoPlace(f"found no node with {free} within {PLACE_SECONDS:g} s")
        self._got(placed, PLACE_SECONDS)
        self._got(self._actor.ready.remote(), max(LOAD_SECONDS, self._limit))

    def sample(self, order: Order) -> bytes:
        return self._got(self._actor.sample.remote(json.dumps(order.packed())), self._limit)

    def receive(self, offer: Offer) -> str:
        return self._got(self._actor.receive.remote(json.dumps(offer.packed())), offer.limit_seconds).decode()

    def end(self) -> None:
        import ray

        self._is_ended = True
        if self._actor is not None and ray.is_initialized():
            ray.kill(self._actor)

    def close(self) -> None:
        self.end()

    def _got(self, reference: Any, seconds: float) -> bytes:
        import ray

        try:
            reply: bytes = ray.get(reference, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise WorkerLost(f"did not answer within {seconds:g} s") from None
        except ray.exceptions.RayError as error:  # killed, crashed, out of memory, its node gone
            raise WorkerLost(f"was lost ({' '.join(str(error).split())[:SHOWN]})") from None
        if reply[:1] == FAILED:
            raise RunFailed(f"rollout worker {self._number}: {reply[1:].decode()}")
        return reply[1:]  # of MISSED: why


def own_address() -> str:
    """The address of this machine as other nodes of the cluster see it."""
    import ray

    return str(ray.util.get_node_ip_address())


def join_cluster(cpus: int) -> Callable[[], None]:
    """Connects to the cluster of RAY_ADDRESS, or starts one of `cpus` CPUs on this machine; returns what leaves it."""
    ray = optional_package("ray", "asynchronous.pool=ray", remedy="pip install 'whet[ray]'")
    if ray.is_initialized():  # by the program that calls whet
        return lambda: None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    path, address = os.environ.get("PYTHONPATH", ""), os.environ.get(ADDRESS) or None
    try:
        ray.init(
            address=address or "local",  # without it Ray would join any cluster that was started here
            num_cpus=None if address else cpus,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path}} if path else None,
        )
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise RunFailed(f"no Ray cluster at {address or 'this machine'} ({error})") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray has one of its own for SIGTERM
                signal.signal(number, handler)
    left: Callable[[], None] = ray.shutdown
    return left
