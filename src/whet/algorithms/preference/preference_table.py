"""Direct alignment and reward models as two tables, like that of `table.py`. A new loss is a function and a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from whet.algorithms.cells import Cell, call, options, terms
from whet.algorithms.preference import losses as p
from whet.algorithms.preference import reward_losses

if TYPE_CHECKING:
    from torch import Tensor

Unit = Literal["pair", "label"]
Kind = Literal["preference", "outcome", "process"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """A method of direct alignment: log-probs of whole completions → loss per pair or per labelled completion."""

    loss: Cell
    unit: Unit
    implicit: Cell  # what the loss takes for the quality of a completion; times beta it is the implicit reward
    point: Cell | None = None  # where the loss has a reference point: how that is made
    paper: str

    @property
    def needs_reference(self) -> bool:
        """Whether the loop must supply log-probs under a reference."""
        return bool({"chosen_ref", "rejected_ref", "logprobs_ref"} & set(terms(self.loss)))

    @property
    def beta(self) -> float:
        """What the quality of a completion is multiplied by; 1 where the loss has no such option."""
        return float(options(self.loss).get("beta", 1.0))

    @property
    def needs_point(self) -> bool:
        """Whether the loop must supply a reference point."""
        return "point" in terms(self.loss)

    @property
    def needs_mismatched(self) -> bool:
        """Whether the point is made of completions after prompts of other rows."""
        return self.point is not None and "mismatched" in terms(self.point)

    @property
    def needs_means(self) -> bool:
        """Whether the point is made of means that follow the run (`preference.moving_means`)."""
        return self.point is not None and "means" in terms(self.point)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardObjective:
    """How a reward model learns: its scores → loss per pair, per judged token, or per step."""

    loss: Cell
    kind: Kind
    paper: str


def pair(loss: Cell, implicit: Cell, paper: str) -> Preference:
    """A method that compares two completions of a prompt."""
    return Preference(loss=loss, unit="pair", implicit=implicit, paper=paper)


def label(loss: Cell, implicit: Cell, paper: str, point: Cell) -> Preference:
    """A method that takes completions one by one."""
    return Preference(loss=loss, unit="label", implicit=implicit, point=point, paper=paper)


# fmt: off
PREFERENCES: dict[str, Preference] = {
    #                   loss          quality of a completion  paper
    "dpo":        pair(p.dpo,        p.log_ratio,             "2305.18290"),
    "cdpo":       pair(p.cdpo,       p.log_ratio,             "Mitchell 2023"),
    "robust_dpo": pair(p.robust_dpo, p.log_ratio,             "2403.00409"),
    "dpo_norm":   pair(p.dpo_norm,   p.mean_log_ratio,        "2411.15124"),
    "ipo":        pair(p.ipo,        p.log_ratio,             "2310.12036"),
    "hinge":      pair(p.hinge,      p.log_ratio,             "2309.06657"),
    "simpo":      pair(p.simpo,      p.mean_logprob,          "2405.14734"),
    "orpo":       pair(p.orpo,       p.log_odds,              "2403.07691"),
    "cpo":        pair(p.cpo,        p.sum_logprob,           "2401.08417"),
    "apo_zero":   pair(p.apo_zero,   p.log_ratio,             "2408.06266"),
    "apo_down":   pair(p.apo_down,   p.log_ratio,             "2408.06266"),
    "sppo":       pair(p.sppo,       p.log_ratio,             "2405.00675"),
    "kto":       label(p.kto,        p.log_ratio,             "2402.01306", point=p.mismatched_kl),
    "bco":       label(p.bco,        p.log_ratio,             "2404.04656", point=p.midpoint),
}
# fmt: on
REWARDS: dict[str, RewardObjective] = {
    "bradley_terry": RewardObjective(loss=reward_losses.bradley_terry, kind="preference", paper="2203.02155"),
    "outcome": RewardObjective(loss=reward_losses.outcome, kind="outcome", paper="2110.14168"),
    "process": RewardObjective(loss=reward_losses.process, kind="process", paper="2305.20050"),
}

SUPPLIED: dict[Unit | Kind, tuple[str, ...]] = {  # unit or kind → the terms that the loop can supply
    "pair": ("chosen", "rejected", "chosen_ref", "rejected_ref", "chosen_tokens", "rejected_tokens"),
    "label": ("logprobs", "labels", "logprobs_ref", "tokens", "point"),
    "preference": ("chosen_scores", "rejected_scores", "margins"),
    "outcome": ("scores", "labels"),
    "process": ("scores", "classes"),
}
KNOWN_BY = [(known[:2], unit) for unit, known in SUPPLIED.items()]  # every loss of a unit takes the first two terms
POINT_TERMS = ("mismatched", "mismatched_ref", "means")  # what a reference point can be made of


def own_row(loss: Cell, unit: Unit | Kind) -> Preference | RewardObjective:
    """The row of a user's loss: the quality of a completion is log π/π_ref, or log π without a reference."""
    match unit:
        case "pair" | "label":
            row = Preference(loss=loss, unit=unit, implicit=p.log_ratio, paper="own")
            return row if row.needs_reference else replace(row, implicit=p.sum_logprob)
        case _:
            return RewardObjective(loss=loss, kind=unit, paper="own")


def implicit_rewards(row: Preference, supply: Mapping[str, Tensor | None]) -> Tensor:
    """(N,): what the policy implies that completions are worth, from their `logprobs`, `logprobs_ref` and `tokens`."""
    quality: Tensor = call(row.implicit, supply)
    return quality * row.beta


def senseless(loss: Cell) -> str:
    """Why the options of a loss make no sense; empty where they do."""
    given = options(loss)
    for key, value in given.items():
        if value < 0:
            return f"{key} is {value!r} and must be a number from 0 on"
    if given.get("beta", 1.0) <= 0:
        return f"beta is {given['beta']:g}: it must be above 0, because log-probs are multiplied by it"
    if given.get("smoothing", 0.0) >= 0.5:
        return (
            f"smoothing is {given['smoothing']:g}: it must be below 0.5, because more flipped labels say the opposite"
        )
    return ""
