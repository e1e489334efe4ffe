"""Inputs for the checks: rollouts, pairs, labelled completions and scores; the same rearranged; extremes of them.

Everything is float64, drawn from a fixed seed, and small enough to differentiate numerically.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.advantages import token_rewards
from whet.algorithms.table import SUPPLIED

Supply = Mapping[str, Any]  # every term that a loop may supply, by name

PROMPTS, GROUP = 4, 3
PROMPT_TOKENS = (2, 4, 1, 3, 5, 2, 3, 1, 2, 4, 1, 3)
COMPLETION_TOKENS = (3, 1, 5, 4, 2, 6, 3, 2, 7, 1, 4, 2)
GAP = (8, 5)  # row and column of a token inside a completion that the policy did not sample, as of a tool's answer
UNITS = 7
FAR_RATIO = 20.0  # a log-ratio that single tokens reach in a long run of several epochs
FAR_NATS = 2000.0  # a long completion that one of two models thinks impossible
FAR_SCORE = 1000.0
FIRST_STEP = "the first step"  # name of what `first_step` gives
TRAINED = ("logprobs", "chosen", "rejected", "chosen_scores", "rejected_scores", "scores")
TOKEN_TERMS = frozenset(
    {"logprobs", "logprobs_old", "logprobs_ref", "advantages", "mask", "token_rewards", "tokens", "values"}
)
REWARD_TERMS = ("rewards", "greedy", "history", "token_rewards", "values")


def supply_for(kind: str) -> dict[str, Tensor]:
    """The terms of a kind of cell: surrogate, advantage, or the unit of a loss."""
    if kind not in SUPPLIED:
        return _units(kind)
    rollouts = _rollouts()
    return {term: rollouts[term] for term in SUPPLIED[kind]}


def _rollouts() -> dict[str, Tensor]:
    """Four groups of three rollouts, rewards in (0, 1), ratios between about 0.5 and 2, advantages of both signs."""
    draw = torch.Generator().manual_seed(3)
    mask = _mask()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    def normal(deviation: float) -> Tensor:
        return deviation * torch.randn(mask.shape, generator=draw, dtype=torch.float64)

    rewards, old = uniform(PROMPTS, GROUP), -normal(1.5).abs() - 0.5
    per_row = torch.linspace(0.4, 2.0, len(mask), dtype=torch.float64) * (1 - 2 * (torch.arange(len(mask)) % 2))
    supply = {
        "rewards": rewards,
        "counts": mask.sum(dim=1).view(PROMPTS, GROUP).double(),
        "history": uniform(3),
        "greedy": uniform(PROMPTS),
        "token_rewards": token_rewards(rewards.reshape(-1), normal(0.1), mask),
        "tokens": (2 * uniform(*mask.shape)).long(),  # of two ids, so that rollouts begin alike
        "values": uniform(*mask.shape),
        "logprobs": old + normal(0.25).clamp(max=0.45),
        "logprobs_old": old,
        "logprobs_ref": old + normal(0.3).clamp(max=0.45),
        "advantages": per_row[:, None] + normal(0.1),
        "mask": mask,
    }
    return moved(supply, mask, seed=0)


def _mask() -> Tensor:
    """Prompts first, then completions, then padding."""
    prompts, completions = torch.tensor(PROMPT_TOKENS)[:, None], torch.tensor(COMPLETION_TOKENS)[:, None]
    columns = torch.arange(int((prompts + completions).max()))
    mask = (columns >= prompts) & (columns < prompts + completions)
    mask[GAP] = False
    return mask


def _units(unit: str) -> dict[str, Tensor]:
    """Seven units: pairs or labelled completions whose policy has moved from its reference, or scores."""
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(UNITS, *shape, generator=draw, dtype=torch.float64)

    labels, tokens = torch.arange(UNITS) % 2 == 0, torch.arange(2, UNITS + 2)

    def completions(name: str) -> dict[str, Tensor]:
        counts = tokens.flip(dims=[0]) if name == "rejected" else tokens
        logprobs = -(0.3 + normal().abs()) * counts
        return {name: logprobs, f"{name}_ref": logprobs + normal(), f"{name}_tokens": counts}

    match unit:
        case "pair":
            return {**completions("chosen"), **completions("rejected")}
        case "label":
            point = torch.tensor(0.7, dtype=torch.float64)
            return {**completions("logprobs"), "tokens": tokens, "labels": labels, "point": point}
        case "preference":
            return {"chosen_scores": normal(), "rejected_scores": normal(), "margins": 0.5 + normal().abs()}
        case "outcome":
            return {"scores": normal(), "labels": labels}
    return {"scores": normal(3), "classes": torch.arange(UNITS) % 3}


def moved(supply: Supply, mask: Tensor, *, seed: int) -> dict[str, Tensor]:
    """The trained tokens at the positions of another mask, row by row in order, with noise everywhere else."""
    draw = torch.Generator().manual_seed(seed)

    def noise(name: str) -> Tensor:
        values = 3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
        if name == "tokens":
            return values.abs().long()
        return -values.abs() - 0.01 if name.startswith("logprobs") else values

    names = [name for name in supply if name in TOKEN_TERMS - {"mask"}]
    placed = {name: noise(name).masked_scatter(mask, supply[name][supply["mask"]]) for name in names}
    return {**supply, **placed, "mask": mask}


def padded(supply: Supply) -> Supply:
    """More columns on the right that no row uses."""
    return moved(supply, torch.nn.functional.pad(supply["mask"], (0, 5)), seed=1)


def shifted(supply: Supply) -> Supply:
    """Completions alone: no prompts, no gaps, each beginning at another column."""
    lengths = supply["mask"].sum(dim=1)
    starts = (torch.arange(len(lengths)) * 2) % 5
    columns = torch.arange(int((starts + lengths).max()))
    return moved(supply, (columns >= starts[:, None]) & (columns < (starts + lengths)[:, None]), seed=1)


def one_row(supply: Supply) -> Supply:
    """The trained tokens of all rows in a single row."""
    return moved(supply, torch.ones(1, int(supply["mask"].sum()), dtype=torch.bool), seed=1)


def rows_of(supply: Supply, rows: Tensor) -> dict[str, Tensor]:
    """Some rows, or units, of every term that has them."""
    return {name: values[rows] if values.dim() else values for name, values in supply.items()}


def reversed_rows(supply: Supply) -> Supply:
    return {name: values.flip(dims=[0]) if values.dim() else values for name, values in supply.items()}


def rearranged(supply: Supply, order: Tensor) -> dict[str, Tensor]:
    """Rollouts in another order. `order` is (P, G): numbers of rollouts, each row from one group."""

    def taken(name: str, values: Tensor) -> Tensor:
        if name == "history":
            return values
        return values[order[:, 0] // GROUP] if name == "greedy" else take_rollouts(values, order)

    return {name: taken(name, values) for name, values in supply.items()}


def take_rollouts(values: Tensor, order: Tensor) -> Tensor:
    """Values of rollouts, (P, G) or (B, T), in another order."""
    return values.reshape(-1)[order] if values.shape == (PROMPTS, GROUP) else values[order.reshape(-1)]


def trained_terms(supply: Supply) -> list[str]:
    """The model's outputs, which a gradient must reach."""
    return [term for term in TRAINED if term in supply]


def last_tokens(mask: Tensor) -> Tensor:
    """Where the last trained token of each row is."""
    return mask & (mask.flip(dims=[1]).cumsum(dim=1).flip(dims=[1]) == 1)


def first_step(supply: Supply) -> dict[str, Tensor]:
    """Before the first update: every ratio is one, the policy is its reference, margins and scores are 0."""
    if "logprobs_old" in supply:
        return {**supply, **{term: supply["logprobs_old"].clone() for term in ("logprobs", "logprobs_ref")}}
    given = {term: torch.zeros_like(supply[term]) if "scores" in term else supply[term] for term in supply}
    given |= {term: given[term.replace("rejected", "chosen")] for term in given}
    given |= {f"{term}_ref": given[term].clone() for term in trained_terms(supply) if f"{term}_ref" in supply}
    return given | ({"point": torch.zeros_like(supply["point"])} if "point" in supply else {})


def directions(supply: Supply) -> tuple[Supply, dict[str, Tensor]]:
    """An input, and for each output of the model +1 where it should rise, −1 where it should fall, 0 where it stays.

    Tokens get advantages of either sign, or none.
    """
    if "mask" in supply:
        signs = (torch.arange(len(supply["mask"])) % 3 - 1.0).double()[:, None].expand(supply["mask"].shape)
        return {**supply, "advantages": 1.5 * signs}, {"logprobs": torch.where(supply["mask"], signs, torch.nan)}
    if "labels" in supply:
        return supply, {term: 2.0 * supply["labels"].double() - 1 for term in trained_terms(supply)}
    if "classes" in supply:
        return supply, {"scores": 2.0 * torch.nn.functional.one_hot(supply["classes"], 3).double() - 1}
    sides = {term: -1.0 if term.startswith("rejected") else 1.0 for term in trained_terms(supply)}
    return supply, {term: torch.full_like(supply[term], side) for term, side in sides.items()}


def extremes(supply: Supply) -> Mapping[str, Supply]:
    """Inputs at the edge of what a run meets, by name."""
    if "rewards" in supply:
        untrained = {**supply, "mask": supply["mask"].clone(), "counts": supply["counts"].clone()}
        untrained["mask"][:2], untrained["counts"][0, :2] = False, 0  # truncated completions that are not trained on
        return {
            "rewards that are all 0": scaled(supply, 0.0),
            "rewards a million times larger": scaled(supply, 1e6),
            "a first step, which has no history": {**supply, "history": supply["history"][:0]},
            "rollouts without a trained token": untrained,
        }
    inputs = {FIRST_STEP: first_step(supply), "tokens of probability one": _certain(supply)}
    if "mask" not in supply:
        margins = {"very large margins on the right side": 1.0, "very large margins on the wrong side": -1.0}
        return inputs | {name: apart(supply, sign) for name, sign in margins.items()}
    untrained = {**supply, "mask": supply["mask"].clone()}
    untrained["mask"][2] = False  # a truncated completion that is not trained on
    return inputs | {
        f"a log-ratio of +{FAR_RATIO:g}": _far(supply, FAR_RATIO),
        f"a log-ratio of −{FAR_RATIO:g}": _far(supply, -FAR_RATIO),
        "advantages of 0": {**supply, "advantages": torch.zeros_like(supply["advantages"])},
        "a row without a trained token": untrained,
    }


def _certain(supply: Supply) -> dict[str, Tensor]:
    """Every token has probability one under every model."""
    logprobs = [term for term in supply if re.fullmatch("(logprobs|chosen|rejected)(_ref|_old)?", term)]
    return {**supply, **{term: torch.zeros_like(supply[term]) for term in logprobs}}


def _far(supply: Supply, log_ratio: float) -> dict[str, Tensor]:
    """The first token of each row has moved very far from the policy that sampled it."""
    start = first_step(supply)
    first = supply["mask"] & (supply["mask"].cumsum(dim=1) == 1)
    before = -25.0 - max(log_ratio, 0.0)  # so that both log-probs are below zero
    placed = {"logprobs": before + log_ratio, "logprobs_old": before, "logprobs_ref": before}
    return {**start, **{name: torch.where(first, value, start[name]) for name, value in placed.items()}}


def apart(supply: Supply, sign: float) -> dict[str, Tensor]:
    """Units whose margins are very large, all right or all wrong, as log-probs of long completions and scores are."""
    given = {**supply}
    for term, way in directions(supply)[1].items():
        good = way * sign > 0
        if "scores" in term:
            given[term] = torch.where(good, FAR_SCORE, -FAR_SCORE).double()
            continue
        given[term] = torch.where(good, -1.0, -1.0 - FAR_NATS).double()
        given[f"{term}_ref"] = torch.where(good, -1.0 - FAR_NATS, -1.0).double()
    return given


def scaled(supply: Supply, factor: float) -> dict[str, Tensor]:
    """All rewards, and the values that estimate them, times a factor."""
    return {**supply, **{name: supply[name] * factor for name in REWARD_TERMS}}


def cast(supply: Supply, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same numbers in another precision."""
    return {name: values.to(dtype) if values.is_floating_point() else values for name, values in supply.items()}
