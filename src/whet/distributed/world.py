"""The processes that train together. Callers do not treat a single process specially.

Every rank works on its own examples, and holds all weights unless `sharding` spreads them. Losses carry global weights,
so gradients are *summed*, never averaged. Messages are JSON or tensors, nothing pickled. When a rank ends, the others
fail: at once if its connections break, after `TIMEOUT` seconds otherwise.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from whet.distributed.sharding import Replicated, Sharding
from whet.errors import RunFailed, UserError

BUCKET_BYTES = 256 * 2**20  # of flat gradient buckets: few messages, bounded memory
TIMEOUT = "WHET_RANK_TIMEOUT_SECONDS"  # an environment variable like RANK, not a recipe key
# Saving a checkpoint, or long completions on one rank, make the others wait for minutes.
TIMEOUT_SECONDS = 900.0
GRACE_SECONDS = 5.0  # torch's own timeout comes first
POLL_SECONDS = 0.05
TRANSPORT = re.compile("gloo|nccl|connection (closed|reset|refused)|by peer", re.IGNORECASE)  # in torch's messages

T = TypeVar("T")


class RankLost(RunFailed):
    """Another rank ended or does not respond; the cause is there."""


@dataclass(frozen=True)
class World:
    """This process (`rank`) among `size` processes, and its device."""

    rank: int
    size: int
    device: torch.device
    spread_by: Sharding | None = field(default=None, kw_only=True, compare=False)

    @classmethod
    def init(cls, device: str = "auto") -> World:
        """Joins the processes of `torchrun`, or a world of one without it."""
        size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
        if rank >= size:
            raise UserError(f"RANK is {rank} and WORLD_SIZE is {size}: ranks count from 0, so start with torchrun")
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if kind == "cuda":
            if not torch.cuda.is_available():
                raise UserError(
                    "device is 'cuda' and torch finds no CUDA device: use device=cpu, or a CUDA build of torch"
                )
            local = torch.device("cuda", _number("LOCAL_RANK", 0))
            torch.cuda.set_device(local)
        else:
            local = torch.device(kind)
        if size > 1 and not dist.is_initialized():
            _join("nccl" if local.type == "cuda" else "gloo", rank, size)
        return cls(rank=rank, size=size, device=local)

    @classmethod
    def alone(cls, device: str | torch.device = "cpu") -> World:
        """A world of one, whatever the environment."""
        return cls(rank=0, size=1, device=torch.device(device))

    @property
    def sharding(self) -> Sharding:
        """How models are held by the ranks."""
        return self.spread_by or Replicated(self)

    def sharded(self, name: str, *, replicas: int = 1, cpu_offload: bool = False) -> World:
        """The same processes with models held as the section `distributed` of a recipe says; one process has all."""
        if name == "none" or self.size == 1:
            return self
        if name == "zero3":
            from whet.distributed.zero3 import ZeRO3

            return replace(self, spread_by=ZeRO3(self))
        from whet.distributed.fsdp2 import FSDP2  # loads much of torch.distributed, which most runs do not need

        return replace(self, spread_by=FSDP2(self, replicas=replicas, cpu_offload=cpu_offload))

    @property
    def is_writer(self) -> bool:
        """Whether this process (rank 0) writes files and prints."""
        return self.rank == 0

    def shard(self, items: Sequence[T]) -> list[T]:
        """The items of this rank, in order."""
        return list(items[self.rank :: self.size])

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce: the sum over all ranks."""
        if self.size == 1:
            return tensor
        total = tensor.to(self.device, copy=True)
        with self.together():
            dist.all_reduce(total)
        return total.to(tensor.device)

    def max(self, value: float) -> float:
        """All-reduce: the maximum over all ranks."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        with self.together():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def gather(self, value: Any) -> list[Any]:
        """All-gather of JSON values, in rank order."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = self._all_gather(torch.tensor([data.numel()], device=self.device))
        padded = torch.zeros(int(max(int(s) for s in sizes)), dtype=torch.uint8, device=self.device)
        padded[: data.numel()] = data
        sized = zip(self._all_gather(padded), sizes, strict=True)
        return [json.loads(piece[: int(size)].cpu().numpy().tobytes()) for piece, size in sized]

    def interleave(self, items: Sequence[Any]) -> list[Any]:
        """The inverse of `shard`: all ranks' JSON items in global order, on every rank."""
        shards = self.gather(list(items))
        total = sum(len(shard) for shard in shards)
        return [shards[index % self.size][index // self.size] for index in range(total)]

    def concat(self, tensor: Tensor) -> Tensor:
        """All-gather of rows, in rank order; other dimensions are padded."""
        if self.size == 1:
            return tensor
        shapes = self.gather(list(tensor.shape))
        largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        padded = torch.zeros(largest, dtype=tensor.dtype, device=self.device)
        padded[tuple(slice(size) for size in tensor.shape)] = tensor.to(self.device)
        pieces = zip(self._all_gather(padded), shapes, strict=True)
        return torch.cat([piece[: shape[0]] for piece, shape in pieces]).to(tensor.device)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """All-reduces the gradients in flat buckets."""
        if self.size == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            with self.together():
                dist.all_reduce(flat)
            for grad, piece in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                grad.copy_(piece.view_as(grad))

    def barrier(self) -> None:
        if self.size > 1:
            with self.together():
                dist.barrier()

    def require_same(self, values: Mapping[str, Any], fix: str) -> None:
        """Fails on every rank if one of them differs from rank 0 in these JSON values."""
        gathered = self.gather(dict(values))
        for rank, theirs in enumerate(gathered):
            different = [name for name in values if theirs.get(name) != gathered[0].get(name)]
            if different:
                raise UserError(f"rank {rank} and rank 0 differ in {', '.join(different)}: {fix}")

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        pieces = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.together():
            dist.all_gather(pieces, tensor)
        return pieces

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around collectives: turns the loss of another rank into `RankLost`."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._lost(error) from error

    def explained(self, error: BaseException | None) -> BaseException | None:
        """The loss of another rank in place of what torch says of it where a pass gathers weights of a spread model."""
        if self.size == 1 or not isinstance(error, RuntimeError) or isinstance(error, RunFailed):
            return error
        return self._lost(error) if TRANSPORT.search(str(error)) else error

    def _lost(self, error: RuntimeError) -> RankLost:
        other = f"rank {1 - self.rank}" if self.size == 2 else "another process"
        if re.search("timed? ?out", str(error), re.IGNORECASE):
            return RankLost(
                f"{other} of the run did not answer within {timeout_seconds():g} s: it hangs or was stopped, or "
                f"needs a larger {TIMEOUT}"
            )
        return RankLost(
            f"{other} of the run has ended ({_reason(error)}); its own output says why, unless it was killed"
        )


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]+", text):
        raise UserError(f"{name} is {text!r} in the environment, must be a whole number: start with torchrun")
    return int(text)


def timeout_seconds() -> float:
    text = os.environ.get(TIMEOUT, "")
    if not text:
        return TIMEOUT_SECONDS
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) <= 0:
        raise UserError(f"{TIMEOUT} is {text!r} in the environment, must be a number of seconds above 0")
    return float(text)


def _join(backend: str, rank: int, size: int) -> None:
    """Joins the process group at rank 0's address."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UserError(f"WORLD_SIZE is {size} and {' and '.join(missing)} is not set: start with torchrun")
    limit, host, port = timeout_seconds(), os.environ["MASTER_ADDR"], _number("MASTER_PORT", 0)
    if not 0 < port < 2**16:
        raise UserError(f"MASTER_PORT is {port} in the environment, must be below {2**16}: start with torchrun")
    lost = f"rank {rank} did not meet all {size} processes of the run at {host}:{port} within {limit:g} s"
    fix = f"start all of them, or raise {TIMEOUT}"
    failures: list[Exception] = []

    def meet() -> None:
        try:
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=limit))
        except Exception as error:  # noqa: BLE001 - raised below, in the main thread
            failures.append(error)

    deadline = time.monotonic() + limit
    if rank > 0 and not _listens(host, port, deadline):  # torch would print a traceback of its own
        raise RankLost(f"{lost}, because nothing listens there: {fix}")
    # In a thread, because torch waits forever for a peer that accepted the connection.
    meeting = threading.Thread(target=meet, daemon=True)
    meeting.start()
    meeting.join(max(0.0, deadline - time.monotonic()) + GRACE_SECONDS)
    if meeting.is_alive():
        raise RankLost(f"{lost}: {fix}")
    for error in failures:
        if not isinstance(error, RuntimeError):
            raise error
        if "EADDRINUSE" in str(error):
            raise UserError(f"{host}:{port} is in use: choose another MASTER_PORT, or start with torchrun") from error
        raise RankLost(f"{lost} ({_reason(error)}): {fix}") from error


def _listens(host: str, port: int, deadline: float) -> bool:
    """Whether the address accepts connections before the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection((host, port), timeout=left):
            return True
        time.sleep(min(left, POLL_SECONDS))
    return False


def _reason(error: RuntimeError) -> str:
    """The first line of torch's message, without its source location."""
    first = re.sub(r"^\[[^]]*\]\s*", "", str(error).partition("\n")[0])
    return first.partition(". ")[0][:100].rstrip(" .:")


def _buckets(grads: list[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() * g.element_size() for g in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
