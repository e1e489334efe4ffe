"""AdamW whose moments, weights or both are in bf16: less memory on the GPU and in checkpoints."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from whet.models.storage.rounding import stochastic_bf16

CHUNK = 1 << 24  # weights at a time: bounds the fp32 copies of weights and moments
SEED_STEP = 1 << 20  # seeds of two steps are apart by it: more than there are chunks of a step
MOMENTS = ("exp_avg", "exp_avg_sq")


class RoundedAdamW(torch.optim.Optimizer):
    """Loshchilov and Hutter 2019; what is kept in bf16 is rounded stochastically after every step.

    A step changes most weights by less than half of the last bit of bf16, and a second moment by 1 − β₂ of the distance
    to the new square: rounded to the nearest they would stay where they are. The random numbers depend on the step and
    the weight's place, so that a resumed run repeats them. Gradients are in fp32, and so is the arithmetic.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        moments: torch.dtype = torch.bfloat16,
    ) -> None:
        """`moments` is the dtype of the moments."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._moments = moments

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
                    state |= {name: torch.zeros_like(parameter, dtype=self._moments) for name in MOMENTS}
                    state["step"] = torch.zeros(())
                state["step"] += 1
                flat = [one.view(-1) for one in (parameter, parameter.grad, *(state[name] for name in MOMENTS))]
                for pieces in zip(*(torch.split(one, CHUNK) for one in flat), strict=True):
                    update(*pieces, group=group, step=int(state["step"]), chunk=chunks)
                    chunks += 1


def update(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, *, group: dict[str, Any], step: int, chunk: int
) -> None:
    """One step of a chunk of weights and its moments, in place; `chunk` numbers its random numbers."""
    beta1, beta2 = group["betas"]
    generator = torch.Generator(weight.device).manual_seed(step * SEED_STEP + chunk)
    m = mean.float().lerp_(gradient, 1 - beta1)  # `mean` itself if it is in fp32
    v = square.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (v / (1 - beta2**step)).sqrt_().add_(group["eps"])
    w = weight.float().mul_(1 - group["lr"] * group["weight_decay"])
    w.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**step))
    for kept, exact in ((mean, m), (square, v), (weight, w)):
        if kept.dtype is torch.bfloat16:
            kept.copy_(stochastic_bf16(exact, generator))
