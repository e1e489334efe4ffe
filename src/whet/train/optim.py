"""The optimizer, its learning rate, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.config import OptimizerConfig
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.models.protocol import CausalLM

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
    grad_norm: float  # before clipping


def make_optimizer(policy: CausalLM, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW on fp32 weights; matrices decay, norms and biases do not."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=trained[0].device.type == "cuda",
    )


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The rate of step 1 … steps: a linear warm-up, then constant, linear to 0 or a half cosine to 0."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - 1 - config.warmup_steps) / max(1, steps - config.warmup_steps)
    factors = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    return config.lr * factors[config.schedule]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def descend(losses: Iterable[Tensor], optimizer: torch.optim.Optimizer, world: World, *, clip_norm: float) -> Descent:
    """One optimizer step on the sum of the losses, over ranks too.

    The losses come from a generator: each is back-propagated before the next is computed, so one micro-batch is in
    memory at a time.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().double().cpu()
    parameters = list(_parameters(optimizer))
    for parameter in parameters:
        if parameter.grad is None:  # a rank without rows in this minibatch still takes part in the sum
            parameter.grad = torch.zeros_like(parameter)
    world.sum_gradients(parameters)
    total = world.sum(total)
    if not bool(total.isfinite()):
        raise NotFinite(f"the loss is {float(total)}")
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip_norm))
    if not math.isfinite(norm):
        raise NotFinite(f"the loss is {float(total):g} but the norm of its gradient is {norm}")
    optimizer.step()
    return Descent(loss=float(total), grad_norm=norm)


def finite(loss: Tensor, **culprit: Tensor) -> Tensor:
    """The loss of a micro-batch; if it is not a number, what it was computed from goes with the error."""
    if not bool(loss.isfinite()):
        raise NotFinite(
            f"the loss is {float(loss.detach())}", {name: tensor.tolist() for name, tensor in culprit.items()}
        )
    return loss


def optimizer_tensors(optimizer: torch.optim.Optimizer, policy: CausalLM) -> dict[str, Tensor]:
    """The optimizer's state by parameter name, for safetensors."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in policy.named_parameters()}
    return {
        f"{moment}/{names[parameter]}": state[moment].detach().cpu().contiguous()
        for parameter, state in optimizer.state.items()
        for moment in MOMENTS
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, policy: CausalLM, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what `optimizer_tensors` gave."""
    for name, parameter in policy.named_parameters():
        if not parameter.requires_grad:
            continue
        missing = [moment for moment in MOMENTS if f"{moment}/{name}" not in tensors]
        if missing or tensors[f"exp_avg/{name}"].shape != parameter.shape:
            raise UserError(f"the checkpoint's optimizer state does not fit parameter {name!r}: it is of another model")
        optimizer.state[parameter] = {
            moment: tensors[f"{moment}/{name}"].to(parameter.device if moment != "step" else _step_device(parameter))
            for moment in MOMENTS
        }


def _step_device(parameter: Tensor) -> torch.device:
    """Fused AdamW counts its steps on the device, the plain one on the host."""
    return parameter.device if parameter.device.type == "cuda" else torch.device("cpu")


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]
