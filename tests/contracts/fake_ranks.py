"""Ranks that are threads of one process: as exact as processes, and quick enough to try every algorithm."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from whet.distributed.world import World

T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass
class Table:
    """Where ranks lay down what they have for the others to see."""

    size: int
    places: list[Any] = field(default_factory=list)
    met: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.places = [None] * self.size
        self.met = threading.Barrier(self.size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.places[rank] = value
        self.met.wait()
        gathered = list(self.places)
        self.met.wait()
        return gathered


@dataclass(frozen=True)
class FakeRank(World):
    """A rank whose others are threads."""

    table: Table

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.table.exchange(self.rank, tensor.clone())).sum(dim=0)

    def max(self, value: float) -> float:
        return max(self.table.exchange(self.rank, value))

    def gather(self, value: Any) -> list[Any]:
        return self.table.exchange(self.rank, value)

    def concat(self, tensor: Tensor) -> Tensor:
        assert tensor.dtype is not torch.bool  # a mask travels as bytes
        pieces = self.table.exchange(self.rank, tensor.clone())
        largest = [max(sizes) for sizes in zip(*(piece.shape[1:] for piece in pieces), strict=True)]
        padded = [torch.zeros(len(piece), *largest, dtype=piece.dtype) for piece in pieces]
        for wide, piece in zip(padded, pieces, strict=True):
            wide[tuple(slice(size) for size in piece.shape)] = piece
        return torch.cat(padded)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.copy_(self.sum(parameter.grad))

    def barrier(self) -> None:
        self.table.met.wait()


def on_ranks(size: int, work: Callable[[World], T]) -> list[T]:
    """What each of `size` ranks makes of it; an error of any is raised here."""
    table, results, errors = Table(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(FakeRank(rank=rank, size=size, device=CPU, table=table))  # type: ignore[call-overload]
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread of the test
            errors.append(error)
            table.met.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return results  # type: ignore[return-value]
