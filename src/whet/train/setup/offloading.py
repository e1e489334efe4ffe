"""Models that take turns on one GPU: what is not at work waits in the host's memory.

Weights and moments come back as the same bytes, so a run with guests is the run without them, a little slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from whet.config.placement import PlacementConfig
from whet.models.decoder.decoder import Trunk

ROOM = 0.6  # of a GPU's memory may be weights, gradients and moments; the rest is for activations and caches
MOST_WILLING = ("reward", "reference", "optimizer", "critic")  # frozen weights first: they need not be copied back


class Guest:
    """Tensors that are on the device while someone is inside; nested visits are one."""

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        *,
        is_frozen: bool = False,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """`tensors` lists them anew at each move; frozen ones are never written back; `forget` drops copies."""
        self._tensors, self._device, self._forget = tensors, device, forget
        self._waiting = [_hosted(tensor) for tensor in tensors()] if is_frozen else None
        self._inside = 0
        self._leave()

    def __enter__(self) -> None:
        if not self._inside:
            for tensor in self._tensors():
                tensor.data = tensor.data.to(self._device, non_blocking=True)
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._leave()

    def _leave(self) -> None:
        here = list(self._tensors())
        for tensor, host in zip(here, self._waiting or map(_hosted, here), strict=True):
            tensor.data = host
        self._forget()


class Guests:
    """Those of a run that wait in the host's memory, by name; the others are always there."""

    def __init__(self, guests: Mapping[str, Guest]) -> None:
        self._guests = dict(guests)

    @contextmanager
    def present(self, *names: str) -> Iterator[None]:
        """Has these on the device."""
        with ExitStack() as stack:
            for name in names:
                if name in self._guests:
                    stack.enter_context(self._guests[name])
            yield


def waiting(placement: PlacementConfig, sizes: Mapping[str, int], *, always: int, memory: int) -> frozenset[str]:
    """Who waits: those that are told to and, as long as the rest and what is `always` there need too much, others.

    All in bytes; a name that `sizes` lacks is not part of the run.
    """
    places = placement.model_dump()
    away = {name for name in sizes if places[name] == "host"}
    for name in MOST_WILLING:
        staying = sum(size for other, size in sizes.items() if other not in away)
        if always + staying <= ROOM * memory:
            break
        if name in sizes and places[name] == "auto":
            away.add(name)
    return frozenset(away)


def weights(model: nn.Module, device: torch.device, *, is_frozen: bool) -> Guest:
    """A guest of a model's parameters and buffers, without the joined copies that passes leave behind."""

    def tensors() -> Iterator[Tensor]:
        yield from model.parameters()
        yield from model.buffers()

    def forget() -> None:
        for module in model.modules():
            if isinstance(module, Trunk):
                module.joined.clear()

    return Guest(tensors, device, is_frozen=is_frozen, forget=forget)


def moments(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> Guest:
    """A guest of what optimizers remember, which begins with their first step."""
    mine = list(optimizers)

    def tensors() -> Iterator[Tensor]:
        for optimizer in mine:
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    return Guest(tensors, device)


def size_of(tensors: Iterable[Tensor]) -> int:
    """In bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _hosted(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, pinned where the tensor can be on a GPU, so that it comes back fast."""
    host = torch.empty_like(tensor.data, device="cpu", pin_memory=torch.cuda.is_available())
    return host.copy_(tensor.data)
