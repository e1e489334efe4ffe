"""Lion: the sign of an interpolated momentum, with one moment per weight instead of Adam's two."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023 (arXiv 2302.06675), algorithm 2: p ← p − lr·(sign(β₁m + (1−β₁)g) + λp), m ← β₂m + (1−β₂)g."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:  # noqa: ARG002 - the same for all
        """The names of a parameter's state."""
        return ("exp_avg",)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                direction = momentum.lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - rate * group["weight_decay"]).add_(direction, alpha=-rate)
                momentum.lerp_(parameter.grad, 1 - beta2)
