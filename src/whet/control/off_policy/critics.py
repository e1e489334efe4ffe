"""Twin critics: two networks of one shape, from observations and actions to values."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from whet.control.mlp import ACTIVATIONS


class TwinCritics(nn.Module):
    """Q_1 and Q_2 of rows and actions in [−1, 1]."""

    def __init__(self, size: int, actions: int, widths: tuple[int, ...], activation: str) -> None:
        super().__init__()
        self.twins = nn.ModuleList(_network((size + actions, *widths), activation) for _ in range(2))

    def forward(self, rows: Tensor, actions: Tensor) -> Tensor:
        """(2, N)."""
        both = torch.cat([rows, actions], dim=1)
        return torch.cat([twin(both) for twin in self.twins], dim=1).T


def _network(widths: tuple[int, ...], activation: str) -> nn.Sequential:
    hidden = (part for a, b in pairwise(widths) for part in (nn.Linear(a, b), ACTIVATIONS[activation]()))
    return nn.Sequential(*hidden, nn.Linear(widths[-1], 1))
