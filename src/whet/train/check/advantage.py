"""Whether an advantage keeps its promises, and facts about it that are neither right nor wrong.

An advantage sees the rollouts of all ranks at once, so it may use statistics of the whole batch. It must not depend on
where a group or a rollout stands, or on how tokens are laid out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, is_per_token, terms
from whet.train.check import probes
from whet.train.check.findings import (
    TOLERANCE,
    Broken,
    Check,
    Finding,
    Supply,
    Verdict,
    attempt,
    check_determinism,
    check_inputs,
    distances,
    note,
    passed,
    require_finite,
    require_same,
    run_checks,
    shape_of,
)

ORDER = torch.arange(probes.PROMPTS * probes.GROUP).view(probes.PROMPTS, probes.GROUP)
NOTHING = "0, so nothing would be learned"
REWARD_TERMS = ("rewards", "greedy", "history", "token_rewards", "values")
PER_TOKEN = frozenset({"token_rewards", "values", "logprobs_old", "logprobs_ref", "mask"})
EQUAL = (0.1, 0.9, 0.0, 1.0)  # rewards of groups that are all alike; the float32 mean of three times 0.9 is not 0.9
NOISE = 0.05  # an advantage that rounding alone may not reach
ROUGH = 1e-3  # facts hold up to an epsilon in a denominator


def check_advantage(cell: Cell) -> list[Finding]:
    """What holds and what does not, one finding per promise."""
    checks = {**BASIC, **(LAYOUTS if PER_TOKEN & set(terms(cell)) else {})}
    if "rewards" in terms(cell):
        checks |= {"equal rewards": _check_equal, "group of one": _check_alone, "negative rewards": _check_negative}
    checks |= {"direction": _check_direction, "other groups": _check_batch, "scale and shift": _describe_scale}
    return run_checks(cell, probes.advantage_supply(), checks)


def _advantages(cell: Cell, supply: Supply, on: str) -> Tensor:
    """What the cell gives, once it has proved to be one number per rollout or, where it says so, per token."""
    found, shapes = attempt(cell, supply, on), {"rollout": supply["rewards"].shape, "token": supply["mask"].shape}
    each, other = ("token", "rollout") if is_per_token(cell) else ("rollout", "token")
    if found.shape == shapes[each]:
        return found
    way = f"return one advantage per {each}"
    if found.shape == shapes[other]:
        way += (
            ", or leave @per_token out" if each == "token" else ", or put @per_token (of whet.algorithms.cells) above"
        )
    raise Broken(f"returns {shape_of(found)} on {on}, not {tuple(shapes[each])}: {way}")


def _check_shape(cell: Cell, supply: Supply) -> Verdict:
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        found = _advantages(cell, probes.cast(supply, dtype), f"ordinary {name} input")
    each = "token" if is_per_token(cell) else "rollout"
    return passed(f"one advantage per {each}: {shape_of(found)} for {probes.PROMPTS} groups of {probes.GROUP}")


def _check_finite(cell: Cell, supply: Supply) -> Verdict:
    unmasked = {**supply, "mask": supply["mask"].clone(), "counts": supply["counts"].clone()}
    unmasked["mask"][:2], unmasked["counts"][0, :2] = False, 0  # truncated completions that are not to be trained
    worthless = {name: torch.zeros_like(supply[name]) for name in REWARD_TERMS}
    inputs = {
        "ordinary input": supply,
        "rewards that are all 0": {**supply, **worthless},
        "rewards a million times larger": _scaled(supply, 1e6),
        "a first step, which has no history": {**supply, "history": supply["history"][:0]},
        "rollouts without a trained token": unmasked,
    }
    for on, given in inputs.items():
        require_finite(_advantages(cell, probes.cast(given, torch.float32), on), on)
    return passed(f"finite on {len(inputs)} inputs, rewards of 0 and completions without a trained token among them")


def _reordered(order: Tensor, change: str, cause: str) -> Check:
    """Whether rollouts have the same advantages in another order."""

    def check(cell: Cell, supply: Supply) -> Verdict:
        told = _compare(cell, supply, order, change, cause)
        return passed(f"{change} changes nothing ({told})")

    return check


def _compare(cell: Cell, supply: Supply, order: Tensor, change: str, cause: str) -> str:
    """The advantages of some rollouts in some order, against those that they have among all."""
    given = probes.arranged(supply, order)
    expected = probes.rearranged(_advantages(cell, supply, "ordinary input"), order)
    found = _advantages(cell, given, change)
    kept, labels = torch.ones_like(found, dtype=torch.bool), ("group", "rollout")
    if is_per_token(cell):
        kept, labels = given["mask"], ("row", "token")
    return require_same(found[kept], expected[kept], kept.nonzero(), labels=labels, change=change, cause=cause)


def _check_equal(cell: Cell, supply: Supply) -> Verdict:
    """Groups whose rewards are all alike: finite, and not made of rounding."""
    rewards = torch.tensor(EQUAL, dtype=torch.float64)[:, None].expand(-1, probes.GROUP).clone()
    given = {**supply, "rewards": rewards}
    on = "groups of equal rewards"
    found = _advantages(cell, probes.cast(given, torch.float32), on)
    require_finite(found, on)
    exact = _advantages(cell, given, on)
    noise = float((found.double() - exact).abs().max())
    if noise > NOISE:
        raise Broken(
            f"gives {noise:.2g} more in float32 than in float64 on {on}: rounding is divided by a deviation of nearly "
            "0; set such groups to 0"
        )
    largest = float(exact.abs().max())
    return passed(f"{on} get 0") if largest <= NOISE else note(f"{on} get advantages up to {largest:.3g}, not 0")


def _check_alone(cell: Cell, supply: Supply) -> Verdict:
    """Whether a group may have one rollout: a fact, unless it cannot be seen."""
    on = "groups of one"
    given = {name: values[:: probes.GROUP] if name in probes.TOKEN_TERMS else values for name, values in supply.items()}
    given |= {name: supply[name][:, :1] for name in ("rewards", "counts")}
    try:
        found = _advantages(cell, probes.cast(given, torch.float32), on)
        require_finite(found, on)
    except Broken as problem:
        return note(f"needs groups of two or more: {problem}")
    largest = float(found.abs().max())
    return note(f"groups of one work and get {f'advantages up to {largest:.3g}' if largest else NOTHING}")


def _check_negative(cell: Cell, supply: Supply) -> Verdict:
    """A penalty may bring a reward below 0; a cell may refuse that, but not give NaN."""
    given = probes.cast({**supply, "rewards": supply["rewards"] - 0.5}, torch.float32)
    try:
        found = _advantages(cell, given, "rewards below 0")
    except Broken as problem:
        return note(f"refuses rewards below 0: {problem}")
    require_finite(found, "rewards below 0")
    return passed("rewards below 0 give finite advantages")


def _check_direction(cell: Cell, supply: Supply) -> Verdict:
    """A rollout that is paid more, all others as before, has no smaller advantage."""
    base = _advantages(cell, supply, "ordinary input")
    mask: Tensor = supply["mask"]
    last = mask & (mask.long().flip(dims=[1]).cumsum(dim=1).flip(dims=[1]) == 1)
    rises = []
    for rollout in range(probes.PROMPTS * probes.GROUP):
        chosen = torch.arange(probes.PROMPTS * probes.GROUP) == rollout
        more = {
            "rewards": supply["rewards"] + 0.01 * chosen.view(probes.PROMPTS, probes.GROUP),
            "token_rewards": supply["token_rewards"] + 0.01 * (last & chosen[:, None]),
        }
        change = _advantages(cell, {**supply, **more}, "a rollout that is paid more") - base
        own = change[last][rollout] if is_per_token(cell) else change.reshape(-1)[rollout]
        rises.append(float(own))
    worst = min(rises)
    if worst < -TOLERANCE:
        place = f"rollout {rises.index(worst) % probes.GROUP} of group {rises.index(worst) // probes.GROUP}"
        raise Broken(f"0.01 more reward for {place} moves its own advantage by {worst:.3g}: the sign is flipped")
    if max(rises) <= TOLERANCE:
        return note("a little more reward changes no advantage of its own rollout")
    return passed(f"a rollout that is paid 0.01 more gets an advantage up to {max(rises):.3g} higher, never lower")


def _check_batch(cell: Cell, supply: Supply) -> Verdict:
    """Whether groups stand alone, or their advantages depend on the rest of the batch."""
    supply = {**supply, "rewards": supply["rewards"].clone()}
    supply["rewards"][3] = 0.5  # a group without a signal, because some cells count those
    try:
        _compare(cell, supply, ORDER[:2], "leaving out the other groups", "")
    except Broken as problem:
        told = str(problem).removesuffix(": ")
        return note(f"uses the whole batch: {told}; that is exact, because all ranks are supplied at once")
    return passed("each group stands alone: leaving out the others changes nothing")


def _describe_scale(cell: Cell, supply: Supply) -> Verdict:
    base = _advantages(cell, supply, "ordinary input")
    kept = supply["mask"] if is_per_token(cell) else torch.ones_like(base, dtype=torch.bool)

    def same(found: Tensor, expected: Tensor) -> bool:
        return bool((distances(found[kept], expected[kept]) <= ROUGH).all())

    larger = _advantages(cell, _scaled(supply, 3.0), "rewards three times larger")
    scale = "3 times larger" if same(larger, 3 * base) else "the same" if same(larger, base) else "otherwise different"
    told = f"rewards 3 times larger give advantages that are {scale}"
    if PER_TOKEN & set(terms(cell)):
        return note(told)
    higher = _advantages(cell, _shifted(supply, 0.5), "rewards that are 0.5 higher")
    shift = "0.5 higher" if same(higher, base + 0.5) else "the same" if same(higher, base) else "otherwise different"
    return note(f"{told}; rewards 0.5 higher give advantages that are {shift}")


def _scaled(supply: Supply, factor: float) -> dict[str, Tensor]:
    return {**supply, **{name: supply[name] * factor for name in REWARD_TERMS}}


def _shifted(supply: Supply, amount: float) -> dict[str, Tensor]:
    return {**supply, **{name: supply[name] + amount for name in ("rewards", "greedy", "history")}}


BASIC: dict[str, Check] = {
    "shape": _check_shape,
    "finite": _check_finite,
    "inputs": check_inputs,
    "determinism": check_determinism,
    "order of groups": _reordered(
        ORDER[torch.tensor([2, 0, 3, 1])],
        "another order of groups",
        "the place of a group in the batch counts; groups come in any order",
    ),
    "order in a group": _reordered(
        ORDER.gather(1, torch.tensor([[1, 2, 0], [2, 0, 1], [0, 2, 1], [2, 1, 0]])),
        "another order within the groups",
        "the place of a rollout in its group counts, or groups are mixed; a group is a row of rewards",
    ),
}
LAYOUTS: dict[str, Check] = {
    "padding": probes.relaid_check(
        _advantages,
        probes.widened,
        "padding with junk",
        "it reads what stands outside the mask or divides by the width; multiply by mask, divide by mask.sum()",
    ),
    "packing": probes.relaid_check(
        _advantages,
        probes.packed,
        "removing prompts and moving completions",
        "it takes the column for the position of a token, or time passes over tokens that were not chosen",
    ),
}
