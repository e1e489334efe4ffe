"""How models are held by the ranks: whole on each of them, or spread over all of them.

A sharding spreads a model, gives out its whole tensors one by one on all ranks, and sums and clips gradients. What
needs whole weights (the engine's copy, checkpoints, the best model) takes them from `whole` alone: every rank asks for
the same tensors in the same order and receives each of them. So no rank waits for another that went a different way,
and none holds a second model. `fsdp2` and `zero3` have the other implementations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from whet.distributed.world import World

T = TypeVar("T")
M = TypeVar("M")
Whole = Callable[[Tensor], Tensor]  # the whole of a tensor, on every rank


class Sharding(Protocol):
    """How the ranks of a run hold its models."""

    @property
    def name(self) -> str:
        """As `distributed.sharding` of a recipe calls it."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether a rank has less than whole models."""
        ...

    def spread(self, model: nn.Module, blocks: Sequence[nn.Module], kept: Collection[str] = ()) -> None:
        """Spreads a model that every rank has whole over all ranks, block by block, on the device of the run.

        `kept` are names of matrices that every rank keeps.
        """
        ...

    def another(self, model: M) -> M:
        """A second model with the same weights, held as the first one is."""
        ...

    def unsharded(self, model: M) -> M:
        """A second model on the meta device, which no rank shares: for an engine that fills it through `whole`."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """The whole of a weight or moment, on every rank; all ranks ask for it together."""
        ...

    def evened(self, batches: Iterable[T], *models: Any, frozen: Sequence[Any] = ()) -> Iterator[T]:
        """The batches of this rank, each of which makes one pass through every `frozen` and then every other model.

        Passes through spread models are made by all ranks together. Where other ranks have more of them, the missing
        ones are made here, with gradients of 0.
        """
        ...

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Sums the gradients over ranks and clips them by their global norm; returns the norm before clipping."""
        ...


class Replicated:
    """Every rank holds all weights."""

    name, is_sharded = "none", False

    def __init__(self, world: World) -> None:
        self._world = world

    def spread(self, model: nn.Module, blocks: Sequence[nn.Module], kept: Collection[str] = ()) -> None:
        """Nothing: the model stays whole."""

    def another(self, model: M) -> M:  # noqa: ARG002
        raise AssertionError("a whole model is copied where it is, with its adapters")

    def unsharded(self, model: M) -> M:  # noqa: ARG002
        raise AssertionError("an engine reads a whole model as it is")

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def evened(self, batches: Iterable[T], *models: Any, frozen: Sequence[Any] = ()) -> Iterator[T]:  # noqa: ARG002
        """Ranks are independent of each other's passes."""
        yield from batches

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        complete_gradients(parameters)
        self._world.sum_gradients(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not bool(norm <= max_norm):  # skips two passes over all gradients
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)


def complete_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Zeros where there is no gradient: a rank without rows still takes part in the sum."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)


def is_spread(tensor: Tensor) -> bool:
    """Whether this rank has a part of the tensor alone."""
    loaded = sys.modules.get("torch.distributed.tensor")  # takes a second to import, and most runs spread nothing
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, or all of it."""
    return cast("Tensor", cast("Any", tensor).to_local()) if is_spread(tensor) else tensor


@torch.no_grad()
def take_over(target: Tensor, whole: Tensor) -> None:
    """Writes a whole tensor, which every rank has, into one that may be spread."""
    local(target).copy_(_own_part(whole, target) if is_spread(target) else whole)


@torch.no_grad()
def held_like(whole: Tensor, other: Tensor, device: torch.device | None = None) -> Tensor:
    """A whole tensor, which every rank has, held as another one of its shape is; else on the device, or the other's."""
    if not is_spread(other) or whole.shape != other.shape:
        return whole.to(device or other.device)
    part = torch.empty_like(other, dtype=whole.dtype)
    take_over(part, whole)
    return part


def _own_part(whole: Tensor, like: Any) -> Tensor:
    """This rank's part of a tensor: chunks as `torch.chunk` makes them, of which the last ranks may have none."""
    part = whole
    for dimension, placement in enumerate(like.placements):
        if placement.is_shard():
            pieces = part.chunk(like.device_mesh.size(dimension), placement.dim)
            mine = like.device_mesh.get_local_rank(dimension)
            part = pieces[mine] if mine < len(pieces) else part.narrow(placement.dim, 0, 0)
    return part
