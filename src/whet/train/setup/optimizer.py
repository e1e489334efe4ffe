"""AdamW, its learning-rate schedule, one optimizer step on losses from cells, and its state as named tensors."""

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
from whet.user_code import one_line

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class NotFinite(RunFailed):
    """The loss or gradient is not finite; no step was taken."""

    kind = "loss"  # of failure, in the name of its file

    def __init__(self, message: str, culprit: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.culprit = dict(culprit or {})  # the tensors it was computed from, if known


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """Loss and gradient norms of one optimizer step."""

    loss: float
    grad_norms: tuple[float, ...]  # before clipping, one per optimizer


class Trainable(Protocol):
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


def make_optimizer(model: Trainable, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW on fp32 weights; weight decay on matrices only. Fused: five times as fast, also on a CPU."""
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
    """Learning rate of step 1 … steps: linear warm-up, then constant, linear or cosine decay to 0."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / (steps - config.warmup_steps)
    factors = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return config.lr * factors[config.schedule]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
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
    """One step of each optimizer on the sum of the losses over micro-batches and ranks; None if `proceed` is False.

    `losses` is a generator: each loss is back-propagated before the next is computed, so only one micro-batch is in
    memory. `proceed` is called after all of them. Each optimizer's gradient is clipped by itself.
    """
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        if loss.requires_grad:  # no gradient without a trained token
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
    """Sums an optimizer's gradient over ranks and clips it; returns the norm before clipping."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.grad is None:  # a rank without rows still takes part in the sum
            parameter.grad = torch.zeros_like(parameter)
    world.sum_gradients(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not bool(norm <= max_grad_norm):  # skips two passes over all gradients
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    return float(norm)


def finite(loss: Tensor, **culprit: Tensor) -> Tensor:
    """The loss of a micro-batch; a non-finite one raises with the tensors it was computed from."""
    if not bool(loss.isfinite()):
        raise NotFinite(
            f"the loss is {float(loss.detach())}", {name: tensor.tolist() for name, tensor in culprit.items()}
        )
    return loss


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: Trainable) -> dict[str, Tensor]:
    """Optimizer state by parameter name, for safetensors."""
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
    """Restores `optimizer_tensors`; nothing if no step was taken before.

    `device` is that of the optimizer, if the weights are offloaded; fused AdamW keeps its step count there.
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


MISTAKES = (ValueError, TypeError, IndexError, KeyError, RuntimeError, AttributeError, ZeroDivisionError)


def ask(cell: cells.Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """The result of a cell on the terms that it names; it must have one of these shapes."""
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
    """`ask` for a loss, which must have a gradient."""
    losses = ask(cell, supply, shapes=shapes)
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise RunFailed(f"{cells.name(cell)!r} has no gradient in the model's outputs, so it trains nothing")
    return losses
