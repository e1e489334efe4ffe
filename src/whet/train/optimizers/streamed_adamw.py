"""AdamW whose fp32 master weights and moments are in host memory and pass through the GPU during the optimizer step.

On the GPU there are bf16 weights, fp32 gradients and a few chunks of buffers. Chunks are copied in, updated and copied
out on three CUDA streams, so that both directions of the bus and the arithmetic overlap.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.errors import RunFailed
from whet.train.optimizers.rounded_adamw import CHUNK, MOMENTS, update
from whet.train.optimizers.saved_moments import MASTER

GIBI = 2**30
LANES = 3  # sets of buffers: one is copied in, one updated, one copied out


class StreamedAdamW(torch.optim.Optimizer):
    """Loshchilov and Hutter 2019. Of bf16 parameters master weights and moments are streamed; others stay on the GPU.

    A parameter is its master weight rounded to the nearest bf16 number: nothing is lost by that, because the master
    weight keeps what was rounded off.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        moments: torch.dtype = torch.float32,
    ) -> None:
        """`moments` is the dtype of the moments."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._moments = moments
        self._lanes: list[_Lane] = []

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:
        """The names of a parameter's state."""
        return (*MOMENTS, "step", MASTER) if parameter.dtype is torch.bfloat16 else (*MOMENTS, "step")

    def take(self, parameter: Tensor, saved: Mapping[str, Tensor]) -> None:
        """Restores the state of a parameter; its master weight alone if no moments are saved."""
        state = self._started(parameter)
        for name in self.state_names(parameter):
            if name in saved:
                state[name].copy_(saved[name])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient; gradients of streamed ones are freed as they are used."""
        assert closure is None
        chunks = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self._started(parameter)
                state["step"] += 1
                flat = [one.view(-1) for one in (parameter, parameter.grad, *(state[name] for name in MOMENTS))]
                if MASTER in state:
                    flat.append(state[MASTER].view(-1))
                for pieces in zip(*(torch.split(one, CHUNK) for one in flat), strict=True):
                    self._update(*pieces, group=group, step=int(state["step"]), chunk=chunks)
                    chunks += 1
                if MASTER in state:
                    parameter.grad = None
        for lane in self._lanes:
            lane.finish()
        self._lanes = []  # their memory is for activations and the KV cache until the next step

    def _started(self, parameter: Tensor) -> dict[str, Tensor]:
        """The state of a parameter, made at its first step."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            is_streamed = parameter.dtype is torch.bfloat16
            device = torch.device("cpu") if is_streamed else parameter.device
            for name in MOMENTS:
                state[name] = _zeros(parameter.shape, self._moments, device)
            state["step"] = torch.zeros(())
            if is_streamed:
                state[MASTER] = _zeros(parameter.shape, torch.float32, device)
                state[MASTER].copy_(parameter.detach())
        return state

    def _update(
        self,
        weight: Tensor,
        gradient: Tensor,
        mean: Tensor,
        square: Tensor,
        master: Tensor | None = None,
        **how: Any,
    ) -> None:
        """One step of a chunk, by way of the GPU's buffers where the gradient is on a GPU."""
        if master is None:
            update(weight, gradient, mean, square, **how)
        elif not gradient.is_cuda:
            update(master, gradient, mean, square, **how)
            weight.copy_(master)
        else:
            if not self._lanes:
                self._lanes = [_Lane.on(gradient.device, self._moments) for _ in range(LANES)]
            lane = self._lanes.pop(0)
            lane.run(weight, gradient, mean, square, master, **how)
            self._lanes.append(lane)


@dataclass(slots=True)
class _Lane:
    """Buffers of one chunk, and the streams that fill and empty them."""

    buffers: tuple[Tensor, Tensor, Tensor]  # (CHUNK,) mean, square, master weight
    inward: torch.cuda.Stream
    outward: torch.cuda.Stream

    @classmethod
    def on(cls, device: torch.device, moments: torch.dtype) -> _Lane:
        """New buffers, whose memory other kernels may still be using."""
        buffers = [torch.empty(CHUNK, dtype=dtype, device=device) for dtype in (moments, moments, torch.float32)]
        inward, outward = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
        inward.wait_stream(torch.cuda.current_stream(device))
        return cls((buffers[0], buffers[1], buffers[2]), inward, outward)

    def run(self, weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, master: Tensor, **how: Any) -> None:
        """Copies a chunk in, updates it and copies it out; the host does not wait."""
        current = torch.cuda.current_stream(weight.device)
        hosted = (mean, square, master)
        here = [buffer[: len(weight)] for buffer in self.buffers]
        self.inward.wait_stream(self.outward)  # until the chunk before has left the buffers
        with torch.cuda.stream(self.inward):
            for buffer, host in zip(here, hosted, strict=True):
                buffer.copy_(host, non_blocking=True)
        current.wait_stream(self.inward)
        update(here[2], gradient, here[0], here[1], **how)
        weight.copy_(here[2])
        self.outward.wait_stream(current)
        with torch.cuda.stream(self.outward):
            for buffer, host in zip(here, hosted, strict=True):
                host.copy_(buffer, non_blocking=True)

    def finish(self) -> None:
        """Waits until the last chunk is in host memory again."""
        self.outward.synchronize()


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; in host memory page-locked, so that copies run beside arithmetic.

    Registered rather than allocated by torch, whose allocator of page-locked memory rounds sizes up to powers of two.
    """
    made = torch.zeros(shape, dtype=dtype, device=device)
    if device.type == "cpu" and torch.cuda.is_available():
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = made.data_ptr()
        failed = int(runtime.cudaHostRegister(address, made.nbytes, 0))
        if failed:
            raise RunFailed(
                f"{made.nbytes / GIBI:.2f} GiB of host memory cannot be page-locked (CUDA error {failed}): free some, "
                "or use optimizer.master_weights=bf16"
            )
        weakref.finalize(made, runtime.cudaHostUnregister, address).atexit = False
    return made
