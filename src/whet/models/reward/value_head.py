"""A number for a state: what a critic puts on top of a trunk."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whet.models.layers.decoder_config import full_precision


class LinearValue(nn.Module):
    """(N, D) states → (N,) values, in fp32. It starts at 0 everywhere, which adds no noise to the first advantages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, states: Tensor) -> Tensor:
        """The values of the states."""
        with full_precision(states.device):
            return states.float() @ self.weight + self.bias
