"""Weights that travel to the workers by broadcast (`whet.distributed.weight_broadcast`), with the proof of `hand_off`.

The trainer keeps the tensors of every version that a ticket needs in host memory. A worker that is to sample with
weights that it does not hold asks for them in the thread that serves it; the sender's thread collects those that ask
for the same version, and makes one broadcast to all of them. If it fails, those that are left ask again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Condition, Thread
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.distributed.weight_broadcast import Broadcast, Missed, Seat, receive
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models.adapters.lora import trained_tensors
from whet.models.protocol import CausalLM
from whet.train.rollout_pool.hand_off import module_of, require_same_names, seal_of, sealed_header
from whet.train.rollout_pool.orders import Order
from whet.train.rollout_pool.ticket_pool import Worker, WorkerLost

COLLECT_SECONDS = 0.05  # for other workers that need the same version
MOST_TRIES = 5  # broadcasts of one version to one worker
GRACE_SECONDS = 10.0  # for a worker to say that it missed a broadcast
CAME = "broadcast"  # how errors call where weights came from


@dataclass(frozen=True, slots=True)
class Offer:
    """What a worker needs to receive the weights of a version."""

    seat: Seat
    header: str
    seal: str

    def packed(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def unpacked(cls, data: Mapping[str, Any]) -> Offer:
        return cls(seat=Seat(**data["seat"]), header=data["header"], seal=data["seal"])

    @property
    def limit_seconds(self) -> float:
        """In which a worker has received them, or said that it did not."""
        return self.seat.seconds + GRACE_SECONDS


@torch.no_grad()
def receive_offer(policy: CausalLM, offer: Offer) -> None:
    """Writes the weights of an offer into the policy, where they are to be proved; raises Missed, or RunFailed."""
    if seal_of(offer.header) != offer.seal:
        raise RunFailed(f"{CAME}: the list of tensors is not the one that the trainer sealed: it is damaged")
    mine, checksums = trained_tensors(module_of(policy)), json.loads(offer.header)["checksums"]
    require_same_names(checksums, mine, came=CAME)
    for name, tensor in mine.items():
        theirs = checksums[name].rpartition(" ")[0]
        if (held := f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}") != theirs:
            raise RunFailed(f"{CAME}: tensor {name!r} is {held} in the worker's model and {theirs} in the trainer's")
    receive([mine[name] for name in sorted(mine)], offer.seat, next(iter(mine.values())).device)


class Receiver(Worker, Protocol):
    """A worker that takes weights by broadcast."""

    def receive(self, offer: Offer) -> str:
        """Empty, or why it missed them. Raises as `sample`."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """The weights of one version in host memory."""

    header: str
    seal: str
    tensors: Sequence[Tensor]  # by name


class Request:
    """One worker that needs a version; the condition of the sender guards it."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.offer: Offer | None = None
        self.failure: Exception | None = None  # of the sender
        self.is_over = False  # the worker has answered, or is lost
        self.has_missed = False  # then: it did not get them


class WeightBroadcasts:
    """The trainer's side; its thread is started with the first worker."""

    def __init__(self, host: Callable[[], str], device: torch.device, *, seconds: float) -> None:
        """`host`: this machine's address as workers see it. `seconds`: the limit of a broadcast."""
        self._host, self._device, self._seconds = host, device, seconds
        self._changed = Condition()  # guards everything below
        self._kept: dict[int, Kept] = {}
        self._waiting: list[Request] = []
        self._thread: Thread | None = None
        self._is_closed = False

    @torch.no_grad()
    def publish(self, policy: CausalLM, version: int, world: World) -> tuple[str, str] | None:
        """As `WeightFiles.publish`, without a file."""
        header = sealed_header(policy, version, world.sharding)
        tensors = []
        for _, tensor in sorted(trained_tensors(module_of(policy)).items()):
            whole = world.sharding.whole(tensor)
            if world.is_writer:
                tensors.append(torch.empty(whole.shape, dtype=whole.dtype).copy_(whole))
        if not world.is_writer:
            return None
        kept = Kept(header=header, seal=seal_of(header), tensors=tensors)
        with self._changed:
            self._kept[version] = kept
        return "", kept.seal

    def keep(self, versions: Collection[int]) -> None:
        with self._changed:
            self._kept = {version: kept for version, kept in self._kept.items() if version in versions}

    def connected(self, worker: Receiver) -> Worker:
        """The worker with a sender."""
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._serve, daemon=True)
                self._thread.start()
        return Connected(worker, self)

    def close(self) -> None:
        """Requests fail from now on, also those that wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def give(self, version: int, receive: Callable[[Offer], str]) -> None:
        """Has the worker of this thread receive a version; WorkerLost if it misses it again and again."""
        for _ in range(MOST_TRIES):
            request, why = Request(version), "was lost"
            try:
                why = receive(self._offered(request))
            finally:
                with self._changed:
                    request.is_over, request.has_missed = True, bool(why)
                    self._changed.notify_all()
            if not why:
                return
        raise WorkerLost(f"missed the weights of version {version} {MOST_TRIES} times ({why})")

    def _offered(self, request: Request) -> Offer:
        """Waits until the sender turns to a request."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()
            most = 2 * (self._seconds + GRACE_SECONDS)  # one broadcast may be under way, and its end be waited for
            self._changed.wait_for(lambda: request.offer or request.failure or self._is_closed, most)
            if request in self._waiting:
                self._waiting.remove(request)
            if request.failure is not None:
                raise RunFailed(f"weights cannot be broadcast to the rollout workers ({request.failure})")
            if request.offer is None:
                ended = "the run ends" if self._is_closed else f"the broadcast before it did not end within {most:g} s"
                raise WorkerLost(f"was given no weights: {ended}")
            return request.offer

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
            time.sleep(COLLECT_SECONDS)
            with self._changed:
                if self._is_closed:
                    return
                if not self._waiting:
                    continue
                version = self._waiting[0].version
                members = [request for request in self._waiting if request.version == version]
                self._waiting = [request for request in self._waiting if request.version != version]
            try:
                self._broadcast(self._kept[version], members)
            except Exception as error:  # noqa: BLE001 - raised by the threads that asked
                with self._changed:
                    for member in members:
                        member.failure = error
                    self._changed.notify_all()

    def _broadcast(self, kept: Kept, members: Sequence[Request]) -> None:
        """One broadcast; the members hear from their workers whether it reached them."""

        def is_lost() -> bool:
            return self._is_closed or any(member.has_missed for member in members)

        broadcast = Broadcast(self._host(), len(members), seconds=self._seconds, is_lost=is_lost)
        with self._changed:
            for rank, member in enumerate(members, start=1):
                member.offer = Offer(seat=broadcast.seat(rank), header=kept.header, seal=kept.seal)
            self._changed.notify_all()
        with suppress(Missed):
            broadcast.send(kept.tensors, self._device)
        with self._changed:  # the store is open until all have what they need of it
            self._changed.wait_for(
                lambda: self._is_closed or all(member.is_over for member in members), self._seconds + GRACE_SECONDS
            )


class Connected:
    """A worker that is given the weights of its orders by broadcast."""

    def __init__(self, worker: Receiver, sender: WeightBroadcasts) -> None:
        self._worker, self._sender = worker, sender
        self._seal = ""  # of the weights that it has

    @property
    def name(self) -> str:
        return self._worker.name

    @property
    def last_output(self) -> str:
        return self._worker.last_output

    def start(self) -> None:
        self._worker.start()

    def sample(self, order: Order) -> bytes:
        if order.seal != self._seal:
            self._seal = ""
            self._sender.give(order.version, self._worker.receive)
            self._seal = order.seal
        return self._worker.sample(order)

    def end(self) -> None:
        self._worker.end()

    def close(self) -> None:
        self._worker.close()
