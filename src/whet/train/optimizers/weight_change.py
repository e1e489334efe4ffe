"""How far a step moves the trained weights, ‖Δθ‖ / ‖θ‖, by a fixed sample of them: a model is never held twice."""

from collections.abc import Iterator

import torch
from torch import Tensor

from whet.distributed.sharding import is_spread
from whet.train.optimizers.saved_moments import MASTER

MOST = 1_000_000  # weights that are compared; a model with fewer is compared as a whole


class WeightChange:
    """Remembers a sample of an optimizer's weights, the same ones at every step, to compare them with later."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._stride = max(1, -(-sum(p.numel() for p in self._weights()) // MOST))
        self._before: Tensor | None = None

    def remember(self) -> None:
        """Takes the sample that `metrics` compares with."""
        self._before = self._sampled()

    def metrics(self) -> dict[str, float]:
        """‖θ − θ_before‖ / ‖θ_before‖ as `weights/change`; none for weights that are spread over ranks."""
        if self._before is None:
            return {}
        before, now = self._before.double(), self._sampled()
        assert now is not None
        norm = float(torch.linalg.vector_norm(before))
        moved = float(torch.linalg.vector_norm(now.double() - before))
        self._before = None
        return {"weights/change": moved / norm} if norm else {}

    @torch.no_grad()
    def _sampled(self) -> Tensor | None:
        """(n,): every `stride`-th weight of each tensor; None if a rank does not have all weights."""
        weights = list(self._weights())
        if not weights or any(is_spread(weight) for weight in weights):
            return None
        # Of bf16 weights with an fp32 copy, the copy: rounding would hide small changes or enlarge them.
        held = (self._optimizer.state.get(weight, {}).get(MASTER, weight) for weight in weights)
        pieces = [one.detach().reshape(-1)[:: self._stride].to(weights[0].device, torch.float32) for one in held]
        return torch.cat(pieces)

    def _weights(self) -> Iterator[Tensor]:
        return (weight for group in self._optimizer.param_groups for weight in group["params"])
