"""Twin critics: two networks of one shape, computed together, from observations and actions to values."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from whet.control.networks import ACTIVATIONS

TWINS = 2


class TwinLinear(nn.Module):
    """Two linear layers as one product of stacks of matrices."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # as torch.nn.Linear begins
        self.weight = nn.Parameter(torch.empty(TWINS, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(TWINS, 1, outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, rows, self.weight)


class TwinCritics(nn.Module):
    """Q_1 and Q_2 of rows and actions in [−1, 1]."""

    def __init__(self, size: int, actions: int, widths: tuple[int, ...], activation: str) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((size + actions, *widths)):
            layers += [TwinLinear(inputs, outputs), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers, TwinLinear((size + actions, *widths)[-1], 1))

    def forward(self, rows: Tensor, actions: Tensor) -> Tensor:
        """(2, N)."""
        both = torch.cat([rows, actions], dim=1)
        values: Tensor = self.layers(both.expand(TWINS, -1, -1))
        return values[:, :, 0]
