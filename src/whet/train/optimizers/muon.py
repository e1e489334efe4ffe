"""Muon: momentum, orthogonalised for each hidden matrix; AdamW for embeddings, the head, norms and biases."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose iterates approach 1 on (0, 1]: Jordan et al. 2024
ITERATIONS = 5
RMS = 0.2  # of an update of AdamW, which Muon's is scaled to, so that one learning rate suits both
SMALLEST = 1e-7


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024 (kellerjordan.github.io/posts/muon), scaled as in Liu et al. 2025 (arXiv 2502.16982).

    Groups with `matrices: True` take Muon's update: m ← μm + g, O = orthogonalised(g + μm) and, for an n × k matrix,
    p ← p − lr·(0.2·√max(n, k)·O + λp). The others take AdamW's (Loshchilov and Hutter 2019).
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float, betas: tuple[float, float], eps: float
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": 0.0, "matrices": False}
        super().__init__(groups, defaults)

    def state_names(self, parameter: Tensor) -> tuple[str, ...]:
        """The names of a parameter's state."""
        group = next(group for group in self.param_groups if any(one is parameter for one in group["params"]))
        return ("momentum",) if group["matrices"] else ("exp_avg", "exp_avg_sq", "step")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            update = self._muon if group["matrices"] else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    direction = update(parameter, parameter.grad, group)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])

    def _muon(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        momentum.mul_(group["momentum"]).add_(gradient)
        ahead = gradient.add(momentum, alpha=group["momentum"])  # Nesterov's
        direction: Tensor = orthogonalised(ahead) * (RMS * math.sqrt(max(parameter.shape)))
        return direction

    def _adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state["step"] = torch.zeros(())
        state["step"] += 1
        steps = int(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean = state["exp_avg"] / (1 - beta1**steps)
        square = state["exp_avg_sq"] / (1 - beta2**steps)
        direction: Tensor = mean / (square.sqrt() + group["eps"])
        return direction


def orthogonalised(matrix: Tensor) -> Tensor:
    """About U·Vᵀ of the singular value decomposition U·S·Vᵀ, by Newton–Schulz iterations; in bf16 on a GPU."""
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16() if matrix.is_cuda else matrix.clone()
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x  # the products are of the shorter side
    x = x / (x.norm() + SMALLEST)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.T if is_tall else x).to(matrix.dtype)
    return result
