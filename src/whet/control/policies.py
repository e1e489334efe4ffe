"""The policy: rows of observations → parameters of the distribution of actions; beside it, values of states."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.control.distributions import LOG_STD, Distribution, Gaussian
from whet.control.networks import Convolutions, Transformer, mlp, orthogonal
from whet.control.normalization import Normalizer
from whet.control.spaces import ObservationCoder
from whet.errors import UserError
from whet.models.storage.tensor_file import StoredItems, Whole, as_it_is, write_items

WEIGHTS, CONFIG = "policy.safetensors", "config.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyShape:
    """What a recipe says of a policy."""

    kind: str = "mlp"
    widths: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    shared: bool = False  # one network under both heads
    log_std: float = 0.0  # at the start
    state_std: bool = False
    orthogonal: bool = True
    history: int = 1
    layers: int = 2
    heads: int = 4
    normalize: bool = False
    clip: float = 10.0


class Policy(nn.Module):
    """An actor, and a critic if `has_critic`; observations are normalised inside, so saved weights are complete."""

    def __init__(
        self, shape: PolicyShape, coder: ObservationCoder, distribution: Distribution, *, has_critic: bool
    ) -> None:
        super().__init__()
        self.shape, self.distribution = shape, distribution
        self.size = shape.history * (coder.size + (shape.history > 1))
        self.normalizer = Normalizer(self.size, shape.clip) if shape.normalize else None
        self.actor = self._network(coder)
        self.critic = self._network(coder) if has_critic and not shape.shared else None
        features = _features(self.actor, coder, shape)
        is_gaussian = isinstance(distribution, Gaussian)
        outputs = distribution.noise if is_gaussian and not shape.state_std else distribution.parameters
        self.head = orthogonal(nn.Linear(features, outputs), 0.01)
        self.value_head = orthogonal(nn.Linear(features, 1), 1.0) if has_critic else None
        if not shape.orthogonal:
            self.apply(_as_torch_begins)
        self.log_std: nn.Parameter | None = None
        if is_gaussian and shape.state_std:
            with torch.no_grad():
                self.head.bias[distribution.noise :] = shape.log_std
        elif is_gaussian:
            self.log_std = nn.Parameter(torch.full((distribution.noise,), shape.log_std))

    def _network(self, coder: ObservationCoder) -> nn.Module:
        shape = self.shape
        match shape.kind:
            case "cnn" if len(coder.picture) == 3 and shape.history == 1:
                channels, height, width = coder.picture
                return Convolutions((channels, height, width))
            case "cnn":
                raise UserError("policy.kind is cnn and observations are not pictures (uint8, three axes): use mlp")
            case "transformer":
                return Transformer(coder.size, shape.history, shape.widths[0], layers=shape.layers, heads=shape.heads)
        return mlp(self.size, shape.widths, shape.activation)

    def seen(self, observations: Tensor) -> Tensor:
        """Rows as the networks read them."""
        if self.normalizer is None:
            return observations
        rows: Tensor = self.normalizer(observations)
        if self.shape.history > 1:  # flags, and what stands before the episode, are not to be moved
            flags = observations.view(len(rows), self.shape.history, -1)[:, :, -1:]
            rows = rows.view(*flags.shape[:2], -1)
            rows = torch.cat([rows[:, :, :-1] * flags, flags], dim=2).view(len(rows), -1)
        return rows

    def action_parameters(self, rows: Tensor) -> Tensor:
        """(N, P) of rows that were `seen`."""
        return self._of_features(self.actor(rows))

    def values(self, rows: Tensor) -> Tensor:
        """(N,) of rows that were `seen`."""
        assert self.value_head is not None
        found: Tensor = self.value_head((self.actor if self.critic is None else self.critic)(rows))
        return found[:, 0]

    def both(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Parameters and values; None without a critic. A shared network is passed once."""
        features = self.actor(rows)
        if self.value_head is None:
            return self._of_features(features), None
        values: Tensor = self.value_head(features if self.critic is None else self.critic(rows))
        return self._of_features(features), values[:, 0]

    def _of_features(self, features: Tensor) -> Tensor:
        found: Tensor = self.head(features)
        if self.log_std is not None:
            return torch.cat([found, self.log_std.expand_as(found)], dim=1)
        if isinstance(self.distribution, Gaussian):
            mean, log_std = found.chunk(2, dim=1)
            return torch.cat([mean, log_std.clamp(*LOG_STD)], dim=1)
        return found

    def save(self, directory: Path | None, dtype: torch.dtype | None = None, whole: Whole = as_it_is) -> None:  # noqa: ARG002 - always as they are trained
        """Weights with the statistics of observations, and what they are the weights of."""
        assert directory is not None
        write_items(directory / WEIGHTS, lambda _: ((name, one) for name, one in self.state_dict().items()))
        about: dict[str, Any] = {"architecture": "control", "dtype": "float32", **asdict(self.shape)}
        (directory / CONFIG).write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors that `Policy.save` wrote."""
    with StoredItems(directory / WEIGHTS) as tensors:
        return dict(tensors)


def _features(network: nn.Module, coder: ObservationCoder, shape: PolicyShape) -> int:
    with torch.no_grad():
        row = torch.zeros(1, shape.history * (coder.size + (shape.history > 1)))
        row[:, -1] = 1.0
        return int(network(row).shape[1])


def _as_torch_begins(module: nn.Module) -> None:
    reset: Callable[[], None] | None = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
