"""AdamW for models of many small tensors: weights, gradients and moments are one vector each, and a step few calls."""

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
        ordered = sorted(self.param_groups, key=_decay)
        self._members = [weight for group in ordered for weight in group["params"]]
        self._ends = list(accumulate(weight.numel() for weight in self._members))
        self.flat = torch.cat([weight.detach().flatten() for weight in self._members])
        self.gradient = torch.zeros_like(self.flat)
        self._moments = {name: torch.zeros_like(self.flat) for name in MOMENTS}
        self._count = torch.zeros((), device=self.flat.device)
        self._first_moment: Tensor | None = None  # as the state has it, unless a checkpoint was read since
        for weight, value, slope in zip(self._members, self._parts(self.flat), self._parts(self.gradient), strict=True):
            weight.data = value
            weight.grad = slope
        self._slices: list[tuple[dict[str, Any], list[Tensor]]] = []  # a group, and its part of every vector
        start = 0
        for _, alike in groupby(ordered, key=_decay):
            some = list(alike)
            end = start + sum(weight.numel() for group in some for weight in group["params"])
            vectors = (self.flat, self.gradient, *self._moments.values())
            self._slices.append((some[0], [vector[start:end] for vector in vectors]))
            start = end

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """The views of a vector that have the shapes of the weights."""
        starts = [0, *self._ends]
        return [
            vector[start:end].view(weight.shape)
            for start, end, weight in zip(starts, self._ends, self._members, strict=False)
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - gradients stay where they are
        """Gradients become 0 in place."""
        self.gradient.zero_()

    @torch.no_grad()
    def descend(self, most: float) -> Tensor:
        """One step on the gradient, scaled down to a norm; returns the norm that it had."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
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
        for place, (group, (weights, gradient, first, second)) in enumerate(self._slices):
            # The count is one for all slices, and a call adds to the one that it gets.
            count = self._count if place + 1 == len(self._slices) else self._count.clone()
            adamw(
                [weights],
                [gradient],
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

    def _keep_state(self) -> None:
        """The state of every weight as views; one that a checkpoint gave is taken over."""
        first = self._members[0]
        if self._first_moment is not None and self.state[first].get("exp_avg") is self._first_moment:
            return
        parts = {name: self._parts(vector) for name, vector in self._moments.items()}
        for place, weight in enumerate(self._members):
            given = self.state[weight]
            if given:
                self._count.copy_(torch.as_tensor(given["step"]))
                for name in MOMENTS:
                    parts[name][place].copy_(given[name])
            self.state[weight] = {"step": self._count, **{name: parts[name][place] for name in MOMENTS}}
        self._first_moment = self.state[first]["exp_avg"]


def _decay(group: dict[str, Any]) -> float:
    return float(group["weight_decay"])
