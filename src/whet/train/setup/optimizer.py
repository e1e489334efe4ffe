"""One optimizer step: losses from cells, gradients, clipping, the learning rate, and the state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.algorithms import cells
from whet.config import OptimizerConfig
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.imports import one_line

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class NotFinite(RunFailed):
    """The loss or the gradient is not a number; the step was not taken."""

    def __init__(self, message: str, culprit: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.culprit = dict(culprit or {})  # what it was computed from, where that is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """What one optimizer step did."""

    loss: float
    grad_norms: tuple[float, ...]  # before clipping, of each optimizer


class Trainable(Protocol):
    """What has parameters with names."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


def make_optimizer(model: Trainable, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW on fp32 weights; matrices decay, norms and biases do not. Fused: a fifth of the time, on a CPU too."""
    trained = [p for _, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The rate of step 1 … steps: a linear warm-up, then constant, linear to 0 or a half cosine to 0."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / (steps - config.warmup_steps)
    factors = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return config.lr * factors[config.schedule]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def descend(
    losses: Iterable[Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    world: World,
    *,
    max_grad_norm: float,
    proceed: Callable[[], bool] = lambda: True,
) -> Descent | None:
    """One step of each optimizer on the sum of the losses, over ranks too; None, and no step, unless `proceed`.

    The losses come from a generator: each is back-propagated before the next is computed, so one micro-batch is in
    memory at a time. `proceed` is asked when all have been computed. Each optimizer's gradient is clipped by itself.
    """
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        if loss.requires_grad:  # a loss without a trained token has none
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().cpu()
    total = world.sum(total)
    if not bool(total.isfinite()):
        raise NotFinite(f"the loss is {float(total)}")
    if not proceed():
        return None
    norms = [_clipped(optimizer, world, max_grad_norm) for optimizer in optimizers]
    for norm in norms:
        if not math.isfinite(norm):
            raise NotFinite(f"the loss is {float(total):g} but the norm of its gradient is {norm}")
    for optimizer in optimizers:
        optimizer.step()
    return Descent(loss=float(total), grad_norms=tuple(norms))


def _clipped(optimizer: torch.optim.Optimizer, world: World, max_grad_norm: float) -> float:
    """Sums an optimizer's gradient over ranks, clips it, and returns the norm that it had."""
    parameters = list(_parameters(optimizer))
    for parameter in parameters:
        if parameter.grad is None:  # a rank without rows in this minibatch still takes part in the sum
            parameter.grad = torch.zeros_like(parameter)
    world.sum_gradients(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not bool(norm <= max_grad_norm):  # a factor of 1 would be two more passes over all of it
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    return float(norm)


def finite(loss: Tensor, **culprit: Tensor) -> Tensor:
    """The loss of a micro-batch; if it is not a number, what it was computed from goes with the error."""
    if not bool(loss.isfinite()):
        raise NotFinite(
            f"the loss is {float(loss.detach())}", {name: tensor.tolist() for name, tensor in culprit.items()}
        )
    return loss


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: Trainable) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, for safetensors."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{moment}/{names[parameter]}": state[moment].cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for moment in MOMENTS
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    model: Trainable,
    tensors: Mapping[str, Tensor],
    device: torch.device | None = None,
) -> None:
    """Puts back what `optimizer_tensors` gave: nothing, if it had not taken a step yet.

    `device` is where the optimizer takes its steps, if the weights wait somewhere else; fused AdamW counts them there.
    """
    if not any(key.startswith(f"{moment}/") for key in tensors for moment in MOMENTS):
        return
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        missing = [moment for moment in MOMENTS if f"{moment}/{name}" not in tensors]
        if missing or tensors[f"exp_avg/{name}"].shape != parameter.shape:
            raise UserError(f"the checkpoint's optimizer state does not fit parameter {name!r}: it is of another model")
        optimizer.state[parameter] = {
            moment: tensors[f"{moment}/{name}"].to(device or parameter.device) for moment in MOMENTS
        }


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


MISTAKES = (ValueError, TypeError, IndexError, KeyError, RuntimeError, AttributeError, ZeroDivisionError)


def ask(cell: cells.Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """What the cell makes of the terms that it names, in one of these shapes."""
    try:
        answer: Tensor = cells.call(cell, supply)
        shape = tuple(answer.shape)
    except torch.OutOfMemoryError:
        raise
    except MISTAKES as error:
        raise RunFailed(f"{cells.name(cell)!r} failed: {one_line(error)} (see whet check-loss)") from error
    if shape not in [tuple(allowed) for allowed in shapes]:
        wanted = " or ".join(str(tuple(allowed)) for allowed in shapes)
        raise RunFailed(
            f"{cells.name(cell)!r} gave a result of shape {shape} instead of {wanted} (see whet check-loss)"
        )
    return answer


def ask_loss(cell: cells.Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """The same of a loss, which must hang together with what is trained."""
    losses = ask(cell, supply, shapes=shapes)
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise RunFailed(f"{cells.name(cell)!r} has no gradient in what the model says, so it trains nothing")
    return losses
