"""Distributions of actions, as functions of (N, P) parameters that a policy computes. Actions are (N, K).

Random numbers are given: a step draws its noise once, by its seed and number, so a resumed run repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from whet.control.spaces import gymnasium
from whet.errors import UserError

Actions = NDArray[Any]
LOG_2PI = math.log(2 * math.pi)
LOG_STD = (-5.0, 2.0)  # bounds of a deviation that depends on the state


class Distribution(Protocol):
    """Of the actions of one space."""

    @property
    def parameters(self) -> int:
        """P, how many numbers a policy computes for it."""

    @property
    def noise(self) -> int:
        """Random numbers that an action takes."""

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """(*shape, noise) random numbers for `sample`."""

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """An action of each row."""

    def mode(self, parameters: Tensor) -> Tensor:
        """The action that is taken without chance."""

    def logprobs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """(N,): log π of each action."""

    def entropies(self, parameters: Tensor) -> Tensor:
        """(N,): in nats."""

    def for_environment(self, actions: Actions) -> list[Any]:
        """The actions as the environment takes them."""

    def for_batch(self, actions: Tensor) -> Tensor:
        """The same for a batched environment: (N, K) on their device."""


@dataclass(frozen=True, slots=True)
class Categorical:
    """One choice of several for each of `sizes`, from logits."""

    sizes: tuple[int, ...]
    starts: tuple[int, ...]  # the number of the first choice
    is_single: bool  # the environment takes a number, not an array

    @property
    def parameters(self) -> int:
        return sum(self.sizes)

    @property
    def noise(self) -> int:
        return self.parameters

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Gumbel's distribution: logits + noise are largest at a choice of the softmax."""
        return -torch.empty(*shape, self.noise, device=generator.device).exponential_(generator=generator).log_()

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return self.mode(parameters + noise)

    def mode(self, parameters: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            return parameters.argmax(dim=1, keepdim=True)
        return torch.stack([logits.argmax(dim=1) for logits in self._split(parameters)], dim=1)

    def logprobs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            return parameters.log_softmax(dim=1).gather(1, actions).flatten()
        chosen = zip(self._split(parameters), actions.unbind(dim=1), strict=True)
        found = [logits.log_softmax(dim=1).gather(1, action[:, None])[:, 0] for logits, action in chosen]
        return torch.stack(found).sum(dim=0)

    def entropies(self, parameters: Tensor) -> Tensor:
        parts = [logits.log_softmax(dim=1) for logits in self._split(parameters)]
        return -torch.stack([(part.exp() * part).sum(dim=1) for part in parts]).sum(dim=0)

    def _split(self, parameters: Tensor) -> Sequence[Tensor]:
        return torch.split(parameters, list(self.sizes), dim=1)

    def for_environment(self, actions: Actions) -> list[Any]:
        moved = actions + np.array(self.starts)
        return moved[:, 0].tolist() if self.is_single else list(moved)

    def for_batch(self, actions: Tensor) -> Tensor:
        return actions + torch.tensor(self.starts, device=actions.device) if any(self.starts) else actions


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Yes or no for each of `count`, from logits."""

    count: int
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return self.count

    @property
    def noise(self) -> int:
        return self.count

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand(*shape, self.noise, generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return (noise < parameters.sigmoid()).long()

    def mode(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).long()

    def logprobs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        return logsigmoid(torch.where(actions == 1, parameters, -parameters)).sum(dim=1)

    def entropies(self, parameters: Tensor) -> Tensor:
        return (softplus(parameters) - parameters * parameters.sigmoid()).sum(dim=1)

    def for_environment(self, actions: Actions) -> list[Any]:
        return list(actions.astype(np.int8).reshape(-1, *self.shape))

    def for_batch(self, actions: Tensor) -> Tensor:
        return actions


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Means and log-deviations of independent numbers; squashed, of their tanh, which is stretched to the bounds.

    Actions are kept as they are before squashing or clipping, where log-probs are finite.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    is_squashed: bool

    @property
    def parameters(self) -> int:
        return 2 * len(self.low)

    @property
    def noise(self) -> int:
        return len(self.low)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.noise, generator=generator, device=generator.device)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, dim=1)
        return mean + log_std.exp() * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, dim=1)[0]

    def logprobs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, dim=1)
        found = -((actions - mean) * (-log_std).exp()).square() / 2 - log_std - LOG_2PI / 2
        if self.is_squashed:  # less log |∂(stretched tanh u)/∂u|; log(1 − tanh² u) without cancellation
            slope = 2 * (math.log(2) - actions - softplus(-2 * actions))
            low, high = self._bounds(actions.device)
            found = found - slope - ((high - low) / 2).log()
        return found.sum(dim=1)

    def entropies(self, parameters: Tensor) -> Tensor:
        """Before squashing: that of the squashed distribution has no closed form."""
        return (parameters.chunk(2, dim=1)[1] + (LOG_2PI + 1) / 2).sum(dim=1)

    def for_environment(self, actions: Actions) -> list[Any]:
        if self.is_squashed:
            return stretched(np.tanh(actions), self.low, self.high, self.shape)
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        return list(actions.clip(low, high).reshape(-1, *self.shape))

    def for_batch(self, actions: Tensor) -> Tensor:
        low, high = self._bounds(actions.device)
        bounded = low + (actions.tanh() + 1) / 2 * (high - low) if self.is_squashed else actions
        return bounded.clamp(low, high)

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.low, device=device), torch.tensor(self.high, device=device)


@dataclass(frozen=True, slots=True)
class NoisyTanh:
    """The tanh of numbers, with Gaussian noise of a fixed deviation beside it: a policy that is not stochastic itself.

    Actions are in [−1, 1] once they are cut, and are stretched to the bounds for the environment.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    deviation: float

    @property
    def parameters(self) -> int:
        return len(self.low)

    @property
    def noise(self) -> int:
        return len(self.low)

    def draw_noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, self.noise, generator=generator)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return parameters.tanh() + self.deviation * noise

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.tanh()

    def logprobs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Of actions that are not cut."""
        found = -((actions - parameters.tanh()) / self.deviation).square() / 2
        return (found - math.log(self.deviation) - LOG_2PI / 2).sum(dim=1)

    def entropies(self, parameters: Tensor) -> Tensor:
        return parameters.new_full((len(parameters),), self.noise * (math.log(self.deviation) + (LOG_2PI + 1) / 2))

    def for_environment(self, actions: Actions) -> list[Any]:
        return stretched(actions, self.low, self.high, self.shape)

    def for_batch(self, actions: Tensor) -> Tensor:
        low, high = (torch.tensor(one, device=actions.device) for one in (self.low, self.high))
        return (low + (actions + 1) / 2 * (high - low)).clamp(low, high)


def stretched(actions: Actions, low: Sequence[float], high: Sequence[float], shape: tuple[int, ...]) -> list[Any]:
    """(N, K) actions in [−1, 1] as those between the bounds; larger ones are cut."""
    lowest, highest = np.array(low, np.float32), np.array(high, np.float32)
    found = lowest + (actions + 1) / 2 * (highest - lowest)
    return list(found.clip(lowest, highest).reshape(-1, *shape))


def distribution_of(space: Any, *, squash: bool = False) -> Distribution:
    """The distribution for a space of actions."""
    spaces = gymnasium().spaces
    match space:
        case spaces.Discrete():
            return Categorical((int(space.n),), (int(space.start),), is_single=True)
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return Categorical(tuple(space.nvec.tolist()), tuple(np.asarray(space.start).tolist()), is_single=False)
        case spaces.MultiBinary():
            return Bernoulli(int(np.prod(space.shape)), tuple(space.shape))
        case spaces.Box():
            if squash and not space.is_bounded():
                raise UserError(f"policy.squash needs bounds, and the actions are of {space}: leave it out")
            low, high = (tuple(np.reshape(bound, -1).tolist()) for bound in (space.low, space.high))
            return Gaussian(low, high, tuple(space.shape), is_squashed=squash)
    raise UserError(f"actions of the space {space} are not supported: use Discrete, MultiDiscrete, MultiBinary or Box")
