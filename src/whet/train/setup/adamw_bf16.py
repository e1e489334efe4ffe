"""AdamW whose moments are in bf16: half of the optimizer's memory, on the GPU and in checkpoints."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from whet.models.storage.rounding import stochastic_bf16

CHUNK = 1 << 24  # weights at a time: bounds the fp32 copies of their moments
SEED_STEP = 1 << 20  # seeds of two steps are apart by it: more than there are chunks of a step


class AdamWBF16(torch.optim.Optimizer):
    """Loshchilov and Hutter 2019; moments are rounded stochastically after every step.

    A second moment changes by 1 − β₂ of the distance to the new square, often less than half of the last bit of bf16:
    rounded to the nearest it would stay where it is. The random numbers depend on the step and the weight's place, so
    that a resumed run repeats them.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        chunks = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= {n: torch.zeros_like(parameter, dtype=torch.bfloat16) for n in ("exp_avg", "exp_avg_sq")}
                    state["step"] = torch.zeros(())
                state["step"] += 1
                flat = [one.view(-1) for one in (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])]
                for pieces in zip(*(torch.split(one, CHUNK) for one in flat), strict=True):
                    _update(*pieces, group=group, step=int(state["step"]), chunk=chunks)
                    chunks += 1


def _update(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, *, group: dict[str, Any], step: int, chunk: int
) -> None:
    """One step of a chunk of weights and its moments, in place."""
    beta1, beta2 = group["betas"]
    generator = torch.Generator(weight.device).manual_seed(step * SEED_STEP + chunk)
    m = mean.float().lerp_(gradient, 1 - beta1)
    v = square.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**step))
    mean.copy_(stochastic_bf16(m, generator))
    square.copy_(stochastic_bf16(v, generator))
