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
from whet.control.mlp import HeadedMlp, Mlp
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


@dataclass(frozen=True, slots=True)
class Pass:
    """Parameters of the distributions, values of the states if there is a critic, and the layers behind them."""

    parameters: Tensor  # (N, P)
    values: Tensor | None  # (N,)
    beside: tuple[tuple[HeadedMlp, list[Tensor], Tensor], ...] = ()  # MLPs beside autograd, and their outputs

    def back(self, loss: Tensor) -> None:
        """Gradients of all weights."""
        loss.backward()  # type: ignore[no-untyped-call]
        for network, states, outputs in self.beside:
            assert outputs.grad is not None
            network.set_gradients(states, outputs.grad)


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

        self._fast_actor = (
            HeadedMlp(self.actor, self.head) if isinstance(self.actor, Mlp) and not shape.shared else None
        )
        self._fast_critic: HeadedMlp | None = None
        if isinstance(self.critic, Mlp) and self.value_head is not None:
            self._fast_critic = HeadedMlp(self.critic, self.value_head)

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
        return self._of_outputs(_outputs(self.actor, self.head, self._fast_actor, rows))

    def values(self, rows: Tensor) -> Tensor:
        """(N,) of rows that were `seen`."""
        assert self.value_head is not None
        network = self.actor if self.critic is None else self.critic
        return _outputs(network, self.value_head, self._fast_critic, rows).flatten()

    def pass_over(self, rows: Tensor) -> Pass:
        """What a loss is computed from, and its way back to the weights."""
        fast = [one for one in (self._fast_actor, self._fast_critic) if one is not None]
        if len(fast) == (1 if self.value_head is None else 2) and all(one.suits(rows) for one in fast):
            states = [one.states(rows) for one in fast]
            ends = [one[-1].requires_grad_() for one in states]
            parameters, values = self._of_outputs(ends[0]), ends[1].flatten() if len(ends) == 2 else None
            return Pass(parameters, values, tuple(zip(fast, states, ends, strict=True)))
        features = self.actor(rows)
        parameters = self._of_outputs(self.head(features))
        if self.value_head is None:
            return Pass(parameters, None)
        values = self.value_head(features if self.critic is None else self.critic(rows))
        return Pass(parameters, values.flatten())

    def _of_outputs(self, found: Tensor) -> Tensor:
        """The parameters of the distribution, by what the head computes."""
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


def _outputs(network: nn.Module, head: nn.Linear, fast: HeadedMlp | None, rows: Tensor) -> Tensor:
    if fast is not None and not torch.is_grad_enabled() and fast.suits(rows):
        return fast.states(rows)[-1]
    found: Tensor = head(network(rows))
    return found


def _features(network: nn.Module, coder: ObservationCoder, shape: PolicyShape) -> int:
    with torch.no_grad():
        row = torch.zeros(1, shape.history * (coder.size + (shape.history > 1)))
        row[:, -1] = 1.0
        return int(network(row).shape[1])


def _as_torch_begins(module: nn.Module) -> None:
    reset: Callable[[], None] | None = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()
