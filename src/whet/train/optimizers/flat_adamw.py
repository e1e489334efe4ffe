"""AdamW for models of many small tensors: weights, gradients and moments are each one vector, so a step is few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MOMENTS = ("exp_avg", "exp_avg_sq")


class FlatAdamW(torch.optim.AdamW):
    """Weights become views of one vector, and so do their gradients, which are never None.

    What it computes and what a checkpoint holds are those of torch's AdamW. All weights are of one device and dtype.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        # By the decay, so that groups which differ in nothing are one slice.
        self._members: list[tuple[dict[str, Any], Tensor]] = [
            (group, weight) for group in sorted(self.param_groups, key=_decay) for weight in group["params"]
        ]
        weights = [weight for _, weight in self._members]
        self._ends = list(accumulate(weight.numel() for weight in weights))
        self.flat = torch.cat([weight.detach().flatten() for weight in weights])
        self.gradient = torch.zeros_like(self.flat)
        self._moments = {name: torch.zeros_like(self.flat) for name in MOMENTS}
        self._count = torch.zeros((), device=self.flat.device)
        self._first_moment: Tensor | None = None  # as the state has it, unless a checkpoint was read since
        for weight, value, slope in zip(weights, self._parts(self.flat), self._parts(self.gradient), strict=True):
            weight.data = value
            weight.grad = slope

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """The views of a vector that have the shapes of the weights."""
        starts = [0, *self._ends]
        return [
            vector[start:end].view(weight.shape)
            for start, end, (_, weight) in zip(starts, self._ends, self._members, strict=False)
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - gradients stay where they are
        """Gradients become 0 in place."""
        self.gradient.zero_()

    @torch.no_grad()
    def descend(self, most: float) -> Tensor:
        """One step on the gradient, scaled down to a norm; returns the norm that it had."""
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((most / (norm + 1e-6)).clamp_(max=1.0))  # as torch.nn.utils.clip_grad_norm_
        self._take_step()
        return norm

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step on the gradient as it is."""
        assert closure is None
        self._take_step()

    def _take_step(self) -> None:
        self._keep_state()
        start = 0
        for _, members in groupby(self._members, key=lambda member: _decay(member[0])):
            some = list(members)
            group, end = some[0][0], start + sum(weight.numel() for _, weight in some)
            first, second = (self._moments[name][start:end] for name in MOMENTS)
            # The count is one for all slices: each call but the last gets a copy, because a call adds to its own.
            count = self._count if end == len(self.flat) else self._count.clone()
            adamw(
                [self.flat[start:end]],
                [self.gradient[start:end]],
                [first],
                [second],
                [],
                [count],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            start = end

    def _keep_state(self) -> None:
        """The state of every weight as views; one that a checkpoint gave is taken over."""
        first = self._members[0][1]
        if self._first_moment is not None and self.state[first].get("exp_avg") is self._first_moment:
            return
        parts = {name: self._parts(vector) for name, vector in self._moments.items()}
        for place, (_, weight) in enumerate(self._members):
            given = self.state[weight]
            if given:
                self._count.copy_(torch.as_tensor(given["step"]))
                for name in MOMENTS:
                    parts[name][place].copy_(given[name])
            self.state[weight] = {"step": self._count, **{name: parts[name][place] for name in MOMENTS}}
        self._first_moment = self.state[first]["exp_avg"]


def _decay(group: dict[str, Any]) -> float:
    return float(group["weight_decay"])
