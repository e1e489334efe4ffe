"""Offloading: models and optimizer moments are in host memory while they are not in use, or on devices of their own.

They come back as the same bytes, so results do not change.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from whet.errors import UserError
from whet.models.decoder.decoder import Trunk


class Offloaded:
    """Tensors that are on the device only inside this context; contexts may be nested."""

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        *,
        is_frozen: bool = False,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """`tensors` lists them at each move; frozen ones are never copied back; `forget` drops cached copies."""
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


# Keeps the model of that name on the device within a `with` block; `nullcontext` where nothing is offloaded.
Present = Callable[[str], AbstractContextManager[object]]


def present_in(offloaded: Mapping[str, Offloaded]) -> Present:
    return lambda name: offloaded.get(name, nullcontext())


def weights(model: nn.Module, is_frozen: bool, device: torch.device) -> Offloaded:
    """A model's parameters and buffers, without the concatenated copies of fused passes."""

    def tensors() -> Iterator[Tensor]:
        yield from model.parameters()
        yield from model.buffers()

    def forget() -> None:
        for module in model.modules():
            if isinstance(module, Trunk):
                module.joined.clear()

    return Offloaded(tensors, device, is_frozen=is_frozen, forget=forget)


def moments(optimizers: Iterable[torch.optim.Optimizer], device: torch.device) -> Offloaded:
    """Optimizer moments; there are none before the first step."""
    mine = list(optimizers)

    def tensors() -> Iterator[Tensor]:
        for optimizer in mine:
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    return Offloaded(tensors, device)


def size_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _hosted(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned if there is a GPU, for fast transfers."""
    host = torch.empty_like(tensor.data, device="cpu", pin_memory=torch.cuda.is_available())
    return host.copy_(tensor.data)


def own_device(names: Sequence[str], key: str) -> torch.device | None:
    """The device that this process has of these; None: the model is on the device of the run."""
    if not names:
        return None
    device = torch.device(names[int(os.environ.get("LOCAL_RANK", "0")) % len(names)])
    if device.type == "cuda":
        present, trainers = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if device.index >= present:
            raise UserError(f"{key} is {device} and this machine has {present} GPUs, of which cuda:0 is the first")
        if device.index < trainers:
            raise UserError(
                f"{key} is {device}, the GPU of a trainer: name one from cuda:{trainers} on, or leave it out"
            )
    return device
