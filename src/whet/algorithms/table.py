"""The algorithms as a table whose cells are the functions of the files beside it. A new one is a function and a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from whet.algorithms import advantages, kl, supervised, surrogates, weightings
from whet.algorithms.cells import Cell, call, formula, name, terms


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A policy-gradient method: rewards → advantages → loss per token → weights, and where the KL goes."""

    advantage: Cell
    surrogate: Cell
    weighting: Cell
    kl: Cell = kl.k3
    kl_coefficient: float = 0.0
    kl_place: Literal["loss", "reward"] = "loss"
    paper: str  # arXiv number, or author and year

    @property
    def needs_reference(self) -> bool:
        """Whether the loop must supply log-probs under a frozen reference."""
        return self.kl_coefficient > 0 or "logprobs_ref" in terms(self.surrogate)

    @property
    def kl_in_loss(self) -> float:
        """The coefficient of the KL that is added to the loss."""
        return self.kl_coefficient if self.kl_place == "loss" else 0.0

    @property
    def kl_in_reward(self) -> float:
        """The coefficient of the KL that is subtracted from the reward."""
        return self.kl_coefficient if self.kl_place == "reward" else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A supervised method: log-probs → loss per token → weights."""

    loss: Cell
    weighting: Cell
    paper: str


row, a, s, w = Algorithm, advantages, surrogates, weightings
# fmt: off
ALGORITHMS: dict[str, Algorithm] = {
    #                rewards → advantages       advantages → loss      how tokens are weighed
    "reinforce": row(advantage=a.raw,           surrogate=s.reinforce, weighting=w.sequence_sum,  paper="Williams92"),
    "rloo":      row(advantage=a.leave_one_out, surrogate=s.reinforce, weighting=w.sequence_sum,  paper="2402.14740"),
    "grpo":      row(advantage=a.standardize,   surrogate=s.clip,      weighting=w.sequence_mean, paper="2402.03300"),
    "dr_grpo":   row(advantage=a.center,        surrogate=s.clip,      weighting=w.budget_mean,   paper="2503.20783"),
}
# fmt: on
OBJECTIVES: dict[str, Objective] = {
    "sft": Objective(loss=supervised.negative_log_likelihood, weighting=w.token_mean, paper="maximum likelihood"),
}

ADVANTAGES: dict[str, Cell] = {f.__name__: f for f in (a.raw, a.center, a.leave_one_out, a.standardize)}
SURROGATES: dict[str, Cell] = {f.__name__: f for f in (s.reinforce, s.clip)}
WEIGHTINGS: dict[str, Cell] = {f.__name__: f for f in (w.token_mean, w.sequence_mean, w.sequence_sum, w.budget_mean)}
KL_ESTIMATORS: dict[str, Cell] = {f.__name__: f for f in (kl.k1, kl.k2, kl.k3)}

# These compare the rollouts of one prompt, so a group of one has nothing to compare.
GROUP_STATISTICS = frozenset({a.center, a.leave_one_out, a.standardize})


def describe(algorithm: Algorithm) -> dict[str, str]:
    """What will be computed, cell by cell."""
    lines = {
        "advantage": f"{name(algorithm.advantage)}: {formula(algorithm.advantage)}",
        "surrogate": f"{name(algorithm.surrogate)}: {formula(algorithm.surrogate)}",
        "weighting": f"{name(algorithm.weighting)}: {formula(algorithm.weighting)}",
    }
    estimate = f"{name(algorithm.kl)}: {formula(algorithm.kl)}"
    if algorithm.kl_in_loss:
        lines["kl"] = f"loss + {algorithm.kl_coefficient:g} · {estimate}"
    elif algorithm.kl_in_reward:
        lines["kl"] = f"reward − {algorithm.kl_coefficient:g} · Σ_t {estimate}"
    else:
        lines["kl"] = "none: no reference model is loaded"
    lines["paper"] = algorithm.paper
    return lines


def token_loss(algorithm: Algorithm, supply: Mapping[str, Tensor | None]) -> Tensor:
    """The loss of every token: the surrogate and, where it belongs there, the KL to the reference."""
    per_token: Tensor = call(algorithm.surrogate, supply)
    if algorithm.kl_in_loss:
        per_token = per_token + algorithm.kl_in_loss * algorithm.kl(supply["logprobs"], supply["logprobs_ref"])
    return per_token
