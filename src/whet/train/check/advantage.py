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

GROUP_ROLLOUT, ROW_TOKEN = ("group", "rollout"), ("row", "token")
REWARD_TERMS = ("rewards", "greedy", "history", "token_rewards", "values")
PER_TOKEN = frozenset({"token_rewards", "values", "logprobs_old", "logprobs_ref", "mask"})
EXTRA_COLUMNS = 5
EQUAL = (0.1, 0.9, 0.0, 1.0)  # rewards of groups that are all alike; the float32 mean of three times 0.9 is not 0.9
NOISE = 0.05  # an advantage that rounding alone may not reach
ROUGH = 1e-3  # facts hold up to an epsilon in a denominator


def check_advantage(cell: Cell) -> list[Finding]:
    """What holds and what does not, one finding per promise."""
    checks: dict[str, Check] = {
        "shape": _check_shape,
        "finite": _check_finite,
        "inputs": check_inputs,
        "determinism": check_determinism,
        "order of groups": _check_groups,
        "order in a group": _check_rollouts,
    }
    if PER_TOKEN & set(terms(cell)):
        checks |= {"padding": _check_padding, "packing": _check_packing}
    if "rewards" in terms(cell):
        checks |= {"equal rewards": _check_equal, "group of one": _check_alone, "negative rewards": _check_negative}
    checks |= {"direction": _check_direction, "other groups": _check_batch, "scale and shift": _describe_scale}
    return run_checks(cell, probes.advantage_supply(), checks)


def _advantages(cell: Cell, supply: Supply, on: str) -> Tensor:
    """What the cell gives, once it has proved to be one number per rollout or per token."""
    found = attempt(cell, supply, on)
    ordinary = probes.advantage_supply()
    usual = attempt(cell, ordinary, "ordinary input").shape
    rollouts, tokens = supply["rewards"].shape, supply["mask"].shape
    allowed = [rollouts, tokens] if PER_TOKEN & set(terms(cell)) else [rollouts]
    if usual in (ordinary["rewards"].shape, ordinary["mask"].shape):  # whichever it is, it must stay so
        allowed = [rollouts] if usual == ordinary["rewards"].shape else allowed[1:]
    if found.shape not in allowed:
        wanted = " or ".join(str(tuple(shape)) for shape in allowed)
        raise Broken(f"returns {shape_of(found)} on {on}, not {wanted}: return one advantage per rollout or per token")
    return found


def _compare(found: Tensor, expected: Tensor, supply: Supply, change: str, cause: str) -> str:
    """Rollout by rollout, or trained token by trained token; `supply` says which are trained in both."""
    if expected.shape == supply["rewards"].shape:
        places, labels = torch.ones_like(expected).nonzero(), GROUP_ROLLOUT
        return require_same(found.reshape(-1), expected.reshape(-1), places, labels=labels, change=change, cause=cause)
    mask = supply["mask"]
    return require_same(found[mask], expected[mask], mask.nonzero(), labels=ROW_TOKEN, change=change, cause=cause)


def _check_shape(cell: Cell, supply: Supply) -> Verdict:
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        found = _advantages(cell, probes.cast(supply, dtype), f"ordinary {name} input")
    each = "token" if found.shape == supply["mask"].shape else "rollout"
    if (each == "token") != is_per_token(cell):
        way = "put @per_token (of whet.algorithms.cells) above it" if each == "token" else "leave @per_token out"
        raise Broken(f"returns one advantage per {each} and declares the opposite: {way}")
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


def _check_groups(cell: Cell, supply: Supply) -> Verdict:
    order = _order()[torch.tensor([2, 0, 3, 1])]
    cause = "the place of a group in the batch counts; groups come in any order"
    told = _reordered(cell, supply, order, "another order of groups", cause)
    return passed(f"groups in another order have the same advantages ({told})")


def _check_rollouts(cell: Cell, supply: Supply) -> Verdict:
    order = _order().gather(1, torch.tensor([[1, 2, 0], [2, 0, 1], [0, 2, 1], [2, 1, 0]]))
    cause = "the place of a rollout in its group counts, or groups are mixed; a group is a row of rewards"
    told = _reordered(cell, supply, order, "another order within the groups", cause)
    return passed(f"rollouts in another order have the same advantages ({told})")


def _reordered(cell: Cell, supply: Supply, order: Tensor, change: str, cause: str) -> str:
    given = probes.arranged(supply, order)
    expected = probes.rearranged(_advantages(cell, supply, "ordinary input"), order)
    return _compare(_advantages(cell, given, change), expected, given, change, cause)


def _order() -> Tensor:
    return torch.arange(probes.PROMPTS * probes.GROUP).view(probes.PROMPTS, probes.GROUP)


def _check_padding(cell: Cell, supply: Supply) -> Verdict:
    wide = probes.widened(supply["mask"], EXTRA_COLUMNS)
    cause = "it reads what stands outside the mask or divides by the width; multiply by mask, divide by mask.sum()"
    return passed(f"more padding changes nothing ({_relaid(cell, supply, wide, 'padding with junk', cause)})")


def _check_packing(cell: Cell, supply: Supply) -> Verdict:
    cause = "it takes the column for the position of a token, or time passes over tokens that were not chosen"
    told = _relaid(cell, supply, probes.packed(supply["mask"]), "removing prompts and moving completions", cause)
    return passed(f"without prompts and in other columns the advantages are the same ({told})")


def _relaid(cell: Cell, supply: Supply, mask: Tensor, change: str, cause: str) -> str:
    expected = _advantages(cell, supply, "ordinary input")
    found = _advantages(cell, probes.relaid(supply, mask, seed=1), f"the same tokens after {change}")
    if found.shape == supply["rewards"].shape:
        return _compare(found, expected, supply, change, cause)
    places = supply["mask"].nonzero()
    return require_same(found[mask], expected[supply["mask"]], places, labels=ROW_TOKEN, change=change, cause=cause)


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
    used = (
        "0, so nothing would be learned"
        if not bool(found.any())
        else f"advantages up to {float(found.abs().max()):.3g}"
    )
    return note(f"groups of one work and get {used}")


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
        own = change.reshape(-1)[rollout] if base.shape == supply["rewards"].shape else change[last][rollout]
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
    half = _order()[:2]
    supply = {**supply, "rewards": supply["rewards"].clone()}
    supply["rewards"][3] = 0.5  # a group without a signal, because some cells count those
    given = probes.arranged(supply, half)
    expected = probes.rearranged(_advantages(cell, supply, "ordinary input"), half)
    found = _advantages(cell, given, "half of the groups")
    try:
        _compare(found, expected, given, "leaving out the other groups", "")
    except Broken as problem:
        told = str(problem).removesuffix(": ")
        return note(f"uses the whole batch: {told}; that is exact, because all ranks are supplied at once")
    return passed("each group stands alone: leaving out the others changes nothing")


def _describe_scale(cell: Cell, supply: Supply) -> Verdict:
    base = _advantages(cell, supply, "ordinary input")
    kept = supply["mask"] if base.shape == supply["mask"].shape else torch.ones_like(base, dtype=torch.bool)

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
