"""Running mean and variance of observations, and of returns: kept in checkpoints with the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class RunningMoments(nn.Module):
    """Count, mean and variance of all rows so far, merged batch by batch (Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(size, dtype=torch.float64))

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Adds (n, size) rows."""
        exact, count = rows.double(), len(rows)
        total, moved = self.count + count, exact.mean(dim=0) - self.mean
        squares = self.variance * self.count + exact.var(dim=0, correction=0) * count
        squares = squares + moved.square() * self.count * count / total
        self.mean += moved * count / total
        self.variance.copy_(squares / total)
        self.count.copy_(total)


class Normalizer(nn.Module):
    """(x − mean) / deviation, clipped; as it is until the first rows are added."""

    def __init__(self, size: int, clip: float) -> None:
        super().__init__()
        self.moments, self.clip = RunningMoments(size), clip

    def forward(self, rows: Tensor) -> Tensor:
        deviation = (self.moments.variance + EPSILON).sqrt()
        return ((rows - self.moments.mean.float()) / deviation.float()).clamp(-self.clip, self.clip)


class RewardScale(nn.Module):
    """Rewards divided by the deviation of the discounted returns so far; not centred, which would change the task."""

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.moments, self.clip = RunningMoments(1), clip

    def forward(self, rewards: Tensor) -> Tensor:
        return (rewards / (self.moments.variance + EPSILON).sqrt()).clamp(-self.clip, self.clip)


def discounted(rewards: Tensor, ended: Tensor, before: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """R_t = r_t + γ·R_{t−1} within an episode, for (T, N) rewards; and the R that the next step goes on from.

    `before`: (N,) R at the last step before these, 0 where an episode begins.
    """
    found, running = torch.empty_like(rewards), before
    for t in range(len(rewards)):
        found[t] = running = rewards[t] + gamma * running
        running = running.masked_fill(ended[t], 0.0)
    return found, running
