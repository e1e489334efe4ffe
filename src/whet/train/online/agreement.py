"""Train-inference mismatch: the sampler's log-probs against the trainer's, at every step, with a limit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whet.algorithms.kl import k3
from whet.distributed.world import World
from whet.errors import RunFailed


class Agreement:
    """Sums over the tokens that were looked at, kept on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)  # |difference|, KL(sampler ‖ trainer), tokens
        self._worst = torch.zeros((), device=device)

    def add(self, trained: Tensor, sampled: Tensor, mask: Tensor) -> None:
        """(B, T) log-probs of both, before the policy has moved."""
        trained = trained.detach()
        apart, kl = (trained - sampled).abs().mul(mask), k3(sampled, trained).mul(mask)
        self._sums += torch.stack([some.sum().double() for some in (apart, kl, mask)])
        if apart.numel():
            self._worst = torch.maximum(self._worst, apart.max())

    def metrics(self, world: World, *, limit: float) -> dict[str, float]:
        """Over all ranks; more than `limit` nats on average end the run."""
        total, kl, count = world.sum(self._sums.cpu()).tolist()
        mean = total / max(1.0, count)
        if math.isnan(mean):  # a loss that does not read the sampler's numbers would not notice
            raise RunFailed("the sampler's log-probs, or the trainer's, are no numbers: look at the weights")
        if mean > limit:
            raise RunFailed(
                f"sampler and trainer disagree by {mean:.3g} nats a token on average (limit {limit:g}): "
                "the engine's weights are not those of the policy"
            )
        worst = world.max(float(self._worst))
        return {"mismatch/mean": mean, "mismatch/max": worst, "mismatch/kl": kl / max(1.0, count)}
