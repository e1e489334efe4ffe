"""Controllers: the KL coefficient, the sampling temperature and running reward statistics, which follow the run.

Their state is a few numbers, saved with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.control import adapted, annealed, spread_temperature
from whet.config import OnlineConfig
from whet.records import Sampling

LONGEST_HISTORY = 1000  # steps: at any usual decay, older ones weigh nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSettings:
    """What the controllers set for one step."""

    sampling: Sampling
    kl_coefficient: float
    history: Tensor  # (steps,) mean rewards of the steps before, oldest first
    moments: tuple[float, float, float]  # count, sum and sum of squares of all rewards before


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What the controllers are told of a finished step."""

    paid: float  # the mean reward as the advantage saw it
    moments: tuple[float, float, float]
    kl: float  # to the reference, nats a token
    rollouts: int


@dataclass(slots=True)
class ControllerState:
    """The state of all controllers; `draws` names the examples of the next sampling round."""

    kl_coefficient: float
    draws: int = 0
    deviation: float | None = None  # of all rewards of the last step, as they were given
    history: list[float] = field(default_factory=list)
    moments: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def next_draw(self) -> int:
        """The number of the next draw of examples: 1, 2, … over the whole run."""
        self.draws += 1
        return self.draws

    def step_settings(self, config: OnlineConfig, *, tokens: int) -> StepSettings:
        """The settings of the next step, after so many sampled tokens."""
        sampling, span = config.rollout.sampling, config.rollout.adaptive_temperature
        if span is not None:
            temperature = spread_temperature(sampling.temperature, self.deviation, low=span.low, high=span.high)
            sampling = replace(sampling, temperature=temperature)
        return StepSettings(
            sampling=sampling,
            kl_coefficient=annealed(self.kl_coefficient, tokens, over=config.algorithm.kl.anneal_tokens),
            history=torch.tensor(self.history, dtype=torch.float64),
            moments=self.moments,
        )

    def learn(self, seen: StepOutcome, config: OnlineConfig) -> None:
        """Takes up what a step has shown."""
        self.history = [*self.history, seen.paid][-LONGEST_HISTORY:]
        self.moments = seen.moments
        kl = config.algorithm.kl
        if kl.target is not None:
            self.kl_coefficient = adapted(
                self.kl_coefficient, seen.kl, target=kl.target, horizon=kl.horizon, count=seen.rollouts
            )

    def numbers(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def tensors(self) -> dict[str, Tensor]:
        """None: it is all numbers."""
        return {}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        """Puts back what `numbers` gave."""
        self.kl_coefficient, self.draws = numbers["kl_coefficient"], numbers["draws"]
        self.deviation, self.history = numbers["deviation"], list(numbers["history"])
        count, total, squares = numbers["moments"]
        self.moments = (count, total, squares)
