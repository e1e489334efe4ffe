"""Inputs on which cells are tried: rollouts of ragged lengths, the same laid out otherwise, pairs and labelled
completions, scores of reward models, and extremes of all of them.

Everything is float64, drawn from a fixed seed of its own, and small enough to differentiate numerically.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.algorithms.advantages import token_rewards
from whet.algorithms.cells import Cell
from whet.train.check.findings import Check, Supply, Verdict, passed, require_same

PROMPTS, GROUP = 4, 3
PROMPT_TOKENS = (2, 4, 1, 3, 5, 2, 3, 1, 2, 4, 1, 3)
COMPLETION_TOKENS = (3, 1, 5, 4, 2, 6, 3, 2, 7, 1, 4, 2)
GAP = (8, 5)  # a row and a column in the middle of its completion that the policy did not choose: a tool's answer
# Off the mask stands anything; (mean, deviation) of what is put there.
JUNK = {"advantages": (0.0, 3.0), "token_rewards": (0.5, 2.0), "values": (0.5, 2.0)}
LOGPROB_JUNK = (-4.0, 1.0)
UNITS = 7
FAR_NATS = 2000.0  # a long completion that one of two models thinks impossible
FAR_SCORE = 1000.0
LIKE = ("mask", "chosen", "chosen_scores", "labels", "classes")  # the first that is supplied has the shape of a loss
TRAINED = ("logprobs", "chosen", "rejected", "chosen_scores", "rejected_scores", "scores")
TOKEN_TERMS = frozenset({"logprobs", "logprobs_old", "logprobs_ref", "advantages", "mask", "token_rewards", "values"})


def surrogate_supply() -> dict[str, Tensor]:
    """Seven rows, ratios between about 0.5 and 2, advantages of both signs that differ between tokens."""
    draw = torch.Generator().manual_seed(3)
    mask = _mask(range(3, 10))

    def normal(deviation: float) -> Tensor:
        return deviation * torch.randn(mask.shape, generator=draw, dtype=torch.float64)

    old = -normal(1.5).abs() - 0.5
    per_row = torch.tensor([1.3, -0.8, 0.6, -1.7, 0.9, -0.4, 2.1], dtype=torch.float64)
    supply = {
        "logprobs": old + normal(0.25).clamp(max=0.45),
        "logprobs_old": old,
        "logprobs_ref": old + normal(0.3).clamp(max=0.45),
        "advantages": per_row[:, None] + normal(0.2),
        "mask": mask,
    }
    return relaid(supply, mask, seed=0)


def advantage_supply() -> dict[str, Tensor]:
    """Four groups of three rollouts, rewards between 0 and 1, no two alike."""
    draw = torch.Generator().manual_seed(5)
    mask = _mask(range(PROMPTS * GROUP))
    rewards = torch.rand(PROMPTS, GROUP, generator=draw, dtype=torch.float64)
    penalties = 0.1 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)
    greedy = torch.rand(PROMPTS, generator=draw, dtype=torch.float64)
    values = torch.rand(mask.shape, generator=draw, dtype=torch.float64)
    old = -1.5 * torch.randn(mask.shape, generator=draw, dtype=torch.float64).abs() - 0.5
    supply = {
        "rewards": rewards,
        "counts": mask.sum(dim=1).view(PROMPTS, GROUP).double(),
        "history": torch.tensor([0.2, 0.35, 0.3], dtype=torch.float64),
        "greedy": greedy,
        "token_rewards": token_rewards(rewards.reshape(-1), penalties, mask),
        "values": values,
        "logprobs_old": old,
        "logprobs_ref": old + (0.3 * torch.randn(mask.shape, generator=draw, dtype=torch.float64)).clamp(max=0.45),
        "mask": mask,
    }
    return relaid(supply, mask, seed=0)


def relaid(supply: Supply, mask: Tensor, *, seed: int) -> dict[str, Tensor]:
    """The trained tokens in the places of another mask, row by row in order, with junk everywhere else."""
    draw = torch.Generator().manual_seed(seed)

    def moved(name: str, values: Tensor) -> Tensor:
        if name == "mask":
            return mask
        if name not in TOKEN_TERMS:
            return values
        mean, deviation = JUNK.get(name, LOGPROB_JUNK)
        there = mean + deviation * torch.randn(mask.shape, generator=draw, dtype=torch.float64).to(values.dtype)
        there = there.clamp(max=-0.01) if name.startswith("logprobs") else there
        there[mask] = values[supply["mask"]]
        return there

    return {name: moved(name, values) for name, values in supply.items()}


def widened(mask: Tensor) -> Tensor:
    """More columns on the right that no row uses."""
    return torch.nn.functional.pad(mask, (0, 5))


def packed(mask: Tensor) -> Tensor:
    """Completions alone: no prompts, no gaps, each beginning at another column."""
    lengths = mask.sum(dim=1)
    starts = (torch.arange(len(mask)) * 2) % 5
    columns = torch.arange(int((starts + lengths).max()))
    return (columns >= starts[:, None]) & (columns < (starts + lengths)[:, None])


def relaid_check(
    evaluate: Callable[[Cell, Supply, str], Tensor], lay: Callable[[Tensor], Tensor], change: str, cause: str
) -> Check:
    """Whether trained tokens, or rollouts, have the same values where another mask lays the tokens out."""

    def check(cell: Cell, supply: Supply) -> Verdict:
        mask, other = supply["mask"], lay(supply["mask"])
        expected = evaluate(cell, supply, "ordinary input")
        found = evaluate(cell, relaid(supply, other, seed=1), f"the same tokens after {change}")
        labels = ("row", "token")
        if expected.shape != mask.shape:
            mask, labels = torch.ones_like(expected, dtype=torch.bool), ("group", "rollout")
            other = mask
        told = require_same(found[other], expected[mask], mask.nonzero(), labels=labels, change=change, cause=cause)
        return passed(f"{change} changes nothing ({told})")

    return check


def rows_of(supply: Supply, rows: Tensor) -> dict[str, Tensor]:
    """Some rows, or units, of every term that has them."""
    return {name: values[rows] if values.dim() else values for name, values in supply.items()}


def arranged(supply: Supply, order: Tensor) -> dict[str, Tensor]:
    """Rollouts in another order. `order` is (P, G): numbers of rollouts, each row out of one group."""

    def taken(name: str, values: Tensor) -> Tensor:
        if name == "history":
            return values
        return values[order[:, 0] // GROUP] if name == "greedy" else rearranged(values, order)

    return {name: taken(name, values) for name, values in supply.items()}


def rearranged(values: Tensor, order: Tensor) -> Tensor:
    """Values of rollouts, (P, G) or (B, T), in another order."""
    if values.shape == (PROMPTS, GROUP):
        return values.reshape(-1)[order]
    return values[order.reshape(-1)]


def trained_terms(supply: Supply) -> list[str]:
    """What the model says, which a gradient must reach."""
    return [term for term in TRAINED if term in supply]


def trained_mask(supply: Supply) -> Tensor:
    """Where a loss counts, and of which shape it is: the mask of tokens, or every unit."""
    like: Tensor = supply[next(term for term in LIKE if term in supply)]
    return like if "mask" in supply else torch.ones_like(like, dtype=torch.bool)


def labels_of(term: str, values: Tensor) -> tuple[str, ...]:
    """What the dimensions of a term are called."""
    if values.dim() == 1:
        return ("unit",)
    return ("unit", "class") if term == "scores" else ("row", "token")


def start(supply: Supply) -> dict[str, Tensor]:
    """Nothing has moved yet: every ratio is one, the policy is its reference, margins and scores are 0."""
    if "logprobs_old" in supply:
        return {**supply, **{term: supply["logprobs_old"].clone() for term in ("logprobs", "logprobs_ref")}}
    said = {term: torch.zeros_like(supply[term]) if "scores" in term else supply[term] for term in supply}
    said |= {term: said[term.replace("rejected", "chosen")] for term in said}
    said |= {f"{term}_ref": said[term].clone() for term in trained_terms(supply) if f"{term}_ref" in supply}
    return said | ({"point": torch.zeros_like(supply["point"])} if "point" in supply else {})


def start_name(supply: Supply) -> str:
    """What `start` is called in sentences."""
    margin = "a margin of 0"
    known = {"mask": "ratios of 1", "chosen": margin, "chosen_scores": margin, "scores": "scores of 0"}
    return next((told for term, told in known.items() if term in supply), "a policy that is its reference")


def certain(supply: Supply) -> dict[str, Tensor]:
    """Every token had probability one under every model."""
    logprobs = [term for term in supply if re.fullmatch("(logprobs|chosen|rejected)(_ref|_old)?", term)]
    return {**supply, **{term: torch.zeros_like(supply[term]) for term in logprobs}}


def far(supply: Supply, log_ratio: float) -> dict[str, Tensor]:
    """One token in each row has moved very far from the policy that sampled it."""
    moved = start(supply)
    mask: Tensor = supply["mask"]
    first = mask & (mask.long().cumsum(dim=1) == 1)
    before = -25.0 - max(log_ratio, 0.0)  # so that both log-probs are below zero
    placed = {"logprobs": before + log_ratio, "logprobs_old": before, "logprobs_ref": before}
    return {**moved, **{name: torch.where(first, value, moved[name]) for name, value in placed.items()}}


def unit_supply(unit: str) -> dict[str, Tensor]:
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
            said = completions("logprobs")
            said["tokens"] = said.pop("logprobs_tokens")
            return {**said, "labels": labels, "point": torch.tensor(0.7, dtype=torch.float64)}
        case "preference":
            return {"chosen_scores": normal(), "rejected_scores": normal(), "margins": 0.5 + normal().abs()}
        case "outcome":
            return {"scores": normal(), "labels": labels}
    return {"scores": normal(3), "classes": torch.arange(UNITS) % 3}


def directions(supply: Supply) -> tuple[Supply, dict[str, Tensor]]:
    """+1 where what the model says should rise, −1 where it should fall, 0 where it should stay; and for which input.

    Tokens get advantages of either sign, or none.
    """
    if "mask" in supply:
        signs = torch.tensor([1.0, -1, 0, 1, -1, 0, 1], dtype=torch.float64)[:, None].expand(supply["mask"].shape)
        return {**supply, "advantages": 1.5 * signs}, {"logprobs": torch.where(supply["mask"], signs, torch.nan)}
    if "labels" in supply:
        return supply, {term: 2.0 * supply["labels"].double() - 1 for term in trained_terms(supply)}
    if "classes" in supply:
        return supply, {"scores": 2.0 * torch.nn.functional.one_hot(supply["classes"], 3).double() - 1}
    sides = {term: -1.0 if term.startswith("rejected") else 1.0 for term in trained_terms(supply)}
    return supply, {term: torch.full_like(supply[term], side) for term, side in sides.items()}


def apart(supply: Supply, sign: float) -> dict[str, Tensor]:
    """Units whose margins are very large, all right or all wrong, as log-probs of long completions and scores are."""
    moved = {**supply}
    for term, way in directions(supply)[1].items():
        good = way * sign > 0
        if "scores" in term:
            moved[term] = torch.where(good, FAR_SCORE, -FAR_SCORE).double()
            continue
        moved[term] = torch.where(good, -1.0, -1.0 - FAR_NATS).double()
        moved[f"{term}_ref"] = torch.where(good, -1.0 - FAR_NATS, -1.0).double()
    return moved


def cast(supply: Supply, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same numbers in another precision."""
    return {name: values.to(dtype) if values.is_floating_point() else values for name, values in supply.items()}


def _mask(rows: Sequence[int]) -> Tensor:
    """Prompts first, then completions, then padding."""
    width = max(PROMPT_TOKENS[row] + COMPLETION_TOKENS[row] for row in rows)
    columns = torch.arange(width)
    prompts = torch.tensor([PROMPT_TOKENS[row] for row in rows])[:, None]
    completions = torch.tensor([COMPLETION_TOKENS[row] for row in rows])[:, None]
    mask = (columns >= prompts) & (columns < prompts + completions)
    row, column = GAP
    mask[list(rows).index(row), column] = False
    return mask
