"""Tensors from a trainer to processes that are not of its world: a process group of its own for every broadcast.

Receivers come and go, so no group outlives one broadcast. They meet at a store of the sender; when all are there, the
group is made: NCCL where every member has a GPU of its own, gloo otherwise. A member that is lost or stopped ends the
broadcast for all of them: at once if the sender is told (`is_lost`), after the time limit otherwise. What arrived until
then is of no use, and the next broadcast has a new group.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_BYTES = 64 * 2**20  # of one message: bounded memory on both sides
POLL_SECONDS = 0.002  # between looks at a message that is on its way
LOOK_SECONDS = 0.1  # between looks at the store meanwhile
SENDER = 0  # its rank
BACKEND, OFF, MEMBER = "backend", "off", "member/"  # keys of the store
ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"  # torch would end the process of the trainer when a worker is lost
UNTOUCHED = "0"
C10D: Any = dist  # whose classes torch leaves untyped


class Missed(Exception):
    """A broadcast did not reach all members; the message says why. Another one may."""


@dataclass(frozen=True, slots=True)
class Seat:
    """How a member finds the others of a broadcast; plain JSON values."""

    host: str
    port: int
    rank: int  # the sender has 0
    size: int
    seconds: float  # for the whole broadcast


class Broadcast:
    """The sender's side of one broadcast."""

    def __init__(self, host: str, receivers: int, *, seconds: float, is_lost: Callable[[], bool] = lambda: False):
        """Listens at an address of this machine that receivers reach. `is_lost`: whether a receiver has ended."""
        listener = socket.create_server((host, 0))
        self._host, self._port = host, int(listener.getsockname()[1])
        self._size, self._seconds, self._is_lost = receivers + 1, seconds, is_lost
        self._deadline = time.monotonic() + seconds
        self._store = C10D.TCPStore(
            host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
            master_listen_fd=listener.detach(),
        )

    def seat(self, rank: int) -> Seat:
        """Of a receiver, from 1."""
        return Seat(host=self._host, port=self._port, rank=rank, size=self._size, seconds=self._seconds)

    def send(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Waits for all receivers, and sends the tensors in order; raises Missed if they do not get them."""
        try:
            self._store.set(f"{MEMBER}{SENDER}", device_name(device))
            members = [f"{MEMBER}{rank}" for rank in range(self._size)]
            self._wait(lambda: self._store.check(members), "not all rollout workers came to the broadcast")
            names = [self._store.get(member) for member in members]
            backend = "nccl" if all(names) and len(set(names)) == len(names) else "gloo"
            self._store.set(BACKEND, backend)
            group = _Group(self._store, backend, self.seat(SENDER), self._host, device)
            for bucket in buckets(tensors):
                flat = torch.cat([piece.to(group.device) for piece in bucket])
                group.broadcast(flat, lambda done: self._wait(done, "the broadcast of weights did not end"))
        except (RuntimeError, Missed) as error:  # torch's: a connection that broke
            with suppress(RuntimeError):
                self._store.set(OFF, "1")
            raise error if isinstance(error, Missed) else Missed(_first_line(error)) from error

    def _wait(self, done: Callable[[], bool], late: str) -> None:
        while not done():
            if self._is_lost():
                raise Missed("a rollout worker was lost during the broadcast")
            if time.monotonic() > self._deadline:
                raise Missed(f"{late} within {self._seconds:g} s")
            time.sleep(POLL_SECONDS)


def receive(tensors: Sequence[Tensor], seat: Seat, device: torch.device) -> None:
    """Fills the tensors with those of the sender; raises Missed if they do not arrive, and then they are of no use."""
    try:
        patience = _Patience(seat)
        store = patience.store
        store.set(f"{MEMBER}{seat.rank}", device_name(device))
        patience.wait(lambda: store.check([BACKEND]))
        group = _Group(store, store.get(BACKEND).decode(), seat, _own_address(seat), device)
        targets = [one if one.is_contiguous() else torch.empty(one.shape, dtype=one.dtype) for one in tensors]
        for bucket in buckets(targets):
            sizes = [len(piece) for piece in bucket]
            flat = torch.empty(sum(sizes), dtype=torch.uint8, device=group.device)
            group.broadcast(flat, patience.wait)
            for piece, part in zip(bucket, torch.split(flat, sizes), strict=True):
                piece.copy_(part)
        for one, target in zip(tensors, targets, strict=True):
            if target is not one:
                one.copy_(target)
    except RuntimeError as error:
        raise Missed(_first_line(error)) from error


class _Patience:
    """A receiver's: until the broadcast is called off, or its time is over."""

    def __init__(self, seat: Seat) -> None:
        self._seconds, self._deadline, self._looked = seat.seconds, time.monotonic() + seat.seconds, 0.0
        self.store = C10D.TCPStore(seat.host, seat.port, is_master=False, timeout=timedelta(seconds=seat.seconds))

    def wait(self, done: Callable[[], bool]) -> None:
        while not done():
            now = time.monotonic()
            if now > self._deadline:
                raise Missed(f"the weights did not arrive within {self._seconds:g} s")
            if now > self._looked + LOOK_SECONDS:
                self._looked = now
                if self.store.check([OFF]):
                    raise Missed("the broadcast was called off")
            time.sleep(POLL_SECONDS)


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The bytes of contiguous tensors in order, as flat views in lists of BUCKET_BYTES; the last one has the rest."""
    bucket: list[Tensor] = []
    room = BUCKET_BYTES
    for tensor in tensors:
        flat = tensor.detach().reshape(-1).view(torch.uint8)
        while len(flat):
            piece, flat = flat[:room], flat[room:]
            bucket.append(piece)
            room -= len(piece)
            if not room:
                yield bucket
                bucket, room = [], BUCKET_BYTES
    if bucket:
        yield bucket


def device_name(device: torch.device) -> str:
    """Of a GPU, the same for all processes that use it; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


class _Group:
    """The process group of one broadcast; torch's default group, which the ranks of a run have, is another one."""

    def __init__(self, store: Any, backend: str, seat: Seat, host: str, device: torch.device) -> None:
        self.device = device if backend == "nccl" else torch.device("cpu")
        self._is_nccl, limit = backend == "nccl", timedelta(seconds=seat.seconds)
        own = C10D.PrefixStore("group", store)
        self._group: Any
        if self._is_nccl:
            options = C10D.ProcessGroupNCCL.Options()
            options._timeout = limit
            set_before = os.environ.get(ERRORS)
            os.environ[ERRORS] = UNTOUCHED  # read when a group is made
            try:
                self._group = C10D.ProcessGroupNCCL(own, seat.rank, seat.size, options)
            finally:
                os.environ.pop(ERRORS) if set_before is None else os.environ.update({ERRORS: set_before})
        else:
            options = C10D.ProcessGroupGloo._Options()
            options._devices = [C10D.ProcessGroupGloo.create_device(hostname=host)]
            options._timeout = limit
            self._group = C10D.ProcessGroupGloo(own, seat.rank, seat.size, options)

    def broadcast(self, flat: Tensor, wait: Callable[[Callable[[], bool]], None]) -> None:
        """From the sender to all; `wait` gives up by raising Missed."""
        work = self._group.broadcast([flat], dist.BroadcastOptions())
        try:
            wait(work.is_completed)
        except Missed:
            self._abandon(work)
            raise
        work.wait()  # raises what went wrong

    def _abandon(self, work: Any) -> None:
        """Gloo cannot stop a message that waits for its peer, so a thread waits until its time is over."""
        if self._is_nccl:
            self._group.abort()
            return
        group = self._group

        def leave() -> None:
            with suppress(RuntimeError):
                work.wait()
            del group_kept[:]

        group_kept = [group]
        threading.Thread(target=leave, daemon=True).start()


def _own_address(seat: Seat) -> str:
    """The address of this machine from which it reaches the sender."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:  # sends nothing
        asked.connect((seat.host, seat.port))
        return str(asked.getsockname()[0])


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
