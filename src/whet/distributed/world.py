"""The processes that train together. The only importer of torch.distributed; one process is not a special case.

Every rank holds all weights and works on its own examples. Losses carry global weights, so gradients are *summed*,
never averaged. Messages are JSON or tensors: nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from whet.errors import RunFailed, UserError

BUCKET_BYTES = 256 * 2**20  # gradients travel in flat pieces of this size: few messages, bounded extra memory

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process (`rank`) among `size` processes, and the device that it computes on."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def init(cls, device: str = "auto") -> World:
        """Joins the processes that `torchrun` started, or stands alone when it was not used."""
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if kind == "cuda":
            if not torch.cuda.is_available():
                raise UserError(
                    "device is 'cuda' and torch finds no CUDA device: use device=cpu, or a CUDA build of torch"
                )
            local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(local)
        else:
            local = torch.device(kind)
        if size > 1 and not dist.is_initialized():
            backend = "nccl" if local.type == "cuda" else "gloo"
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(minutes=30))
        return cls(rank=rank, size=size, device=local)

    @classmethod
    def alone(cls, device: str = "cpu") -> World:
        """A world of one, whatever the environment says."""
        return cls(rank=0, size=1, device=torch.device(device))

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def owns(self, index: int) -> bool:
        """Whether the item with this global index is worked on here."""
        return index % self.size == self.rank

    def shard(self, items: Sequence[T]) -> list[T]:
        """The items that are worked on here, in order."""
        return [item for index, item in enumerate(items) if self.owns(index)]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        if self.size == 1:
            return tensor
        total = tensor.to(self.device, copy=True)
        with _together():
            dist.all_reduce(total)
        return total.to(tensor.device)

    def max(self, value: float) -> float:
        """The largest value of any rank."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, dtype=torch.float64, device=self.device)
        with _together():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        with _together():
            dist.all_gather(sizes, torch.tensor([data.numel()], device=self.device))
        padded = torch.zeros(int(max(int(s) for s in sizes)), dtype=torch.uint8, device=self.device)
        padded[: data.numel()] = data
        pieces = [torch.empty_like(padded) for _ in range(self.size)]
        with _together():
            dist.all_gather(pieces, padded)
        sized = zip(pieces, sizes, strict=True)
        return [json.loads(piece[: int(size)].cpu().numpy().tobytes()) for piece, size in sized]

    def interleave(self, items: Sequence[Any]) -> list[Any]:
        """The inverse of `shard`: everybody's JSON items in their global order, on every rank."""
        shards = self.gather(list(items))
        total = sum(len(shard) for shard in shards)
        return [shards[index % self.size][index // self.size] for index in range(total)]

    def concat(self, tensor: Tensor) -> Tensor:
        """Every rank's rows one behind the other, in the order of ranks, on every rank; other dimensions are padded."""
        if self.size == 1:
            return tensor
        shapes = self.gather(list(tensor.shape))
        largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        padded = torch.zeros(largest, dtype=tensor.dtype, device=self.device)
        padded[tuple(slice(size) for size in tensor.shape)] = tensor.to(self.device)
        pieces = [torch.empty_like(padded) for _ in range(self.size)]
        with _together():
            dist.all_gather(pieces, padded)
        return torch.cat([piece[: shape[0]] for piece, shape in zip(pieces, shapes, strict=True)]).to(tensor.device)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Adds up the gradients of all ranks, in flat buckets."""
        if self.size == 1:
            return
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            with _together():
                dist.all_reduce(flat)
            for grad, piece in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                grad.copy_(piece.view_as(grad))

    def barrier(self) -> None:
        """Waits until every rank is here."""
        if self.size > 1:
            with _together():
                dist.barrier()

    def close(self) -> None:
        """Leaves the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """What all ranks do at once; a rank that is gone ends the run here too, in a sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise RunFailed(f"another process of the run has ended, and its own message says why ({why:.100})") from error


def _buckets(grads: list[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() * g.element_size() for g in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
