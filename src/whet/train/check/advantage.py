"""Checks of advantages, and facts about them that are neither right nor wrong.

An advantage sees the rollouts of all ranks at once, so it may use statistics of the whole batch. It must not depend on
the position of a group or a rollout, or on how tokens are laid out.
"""

from functools import partial

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, is_per_token, terms
from whet.train.check import probes
from whet.train.check.findings import (
    LAYOUTS,
    ORDINARY,
    TOLERANCE,
    Broken,
    Check,
    Finding,
    Note,
    evaluate,
    invariance,
    require_finite,
    run_checks,
)
from whet.train.check.gradient import check_finite
from whet.train.check.probes import Supply

ORDER = torch.arange(probes.PROMPTS * probes.GROUP).view(probes.PROMPTS, probes.GROUP)
PER_TOKEN = frozenset({"token_rewards", "values", "logprobs_old", "logprobs_ref", "tokens", "mask"})
EQUAL = (0.1, 0.9, 0.0, 1.0)  # rewards of groups without variance; the float32 mean of three times 0.9 is not 0.9
NOISE = 0.05  # an advantage that rounding alone may not reach


def check_advantage(cell: Cell) -> list[Finding]:
    """One finding per check."""
    checks = {**BASIC, **(LAYOUTS if PER_TOKEN & set(terms(cell)) else {})}
    if "rewards" in terms(cell):
        checks |= {"equal rewards": _check_equal, "group of one": _check_alone, "negative rewards": _check_negative}
    checks |= {"direction": _check_direction, "other groups": _check_batch}
    return run_checks(cell, probes.supply_for("advantage"), checks)


def _finite(cell: Cell, supply: Supply, on: str) -> Tensor:
    found = evaluate(cell, probes.cast(supply, torch.float32), on)
    require_finite(found, on)
    return found


def _check_equal(cell: Cell, supply: Supply) -> str:
    """Groups of equal rewards: finite, and not made of rounding."""
    rewards = torch.tensor(EQUAL, dtype=torch.float64)[:, None].expand(-1, probes.GROUP).clone()
    given, on = {**supply, "rewards": rewards}, "groups of equal rewards"
    found, exact = _finite(cell, given, on), evaluate(cell, given, on)
    noise, largest = float((found.double() - exact).abs().max()), float(exact.abs().max())
    if noise > NOISE:
        raise Broken(
            f"gives {noise:.2g} more in float32 than in float64 on {on}: rounding is divided by a deviation of nearly "
            "0; set such groups to 0"
        )
    return f"{on} get 0" if largest <= NOISE else Note(f"{on} get advantages up to {largest:.3g}, not 0")


def _check_alone(cell: Cell, supply: Supply) -> str:
    """Whether a group may have one rollout: a fact."""
    given = {name: values[:: probes.GROUP] if name in probes.TOKEN_TERMS else values for name, values in supply.items()}
    given |= {name: supply[name][:, :1] for name in ("rewards", "counts")}
    try:
        largest = float(_finite(cell, given, "groups of one").abs().max())
    except Broken as problem:
        return Note(f"needs groups of two or more: {problem}")
    get = f"advantages up to {largest:.3g}" if largest else "0, so nothing would be learned"
    return Note(f"groups of one work and get {get}")


def _check_negative(cell: Cell, supply: Supply) -> str:
    """A penalty may bring a reward below 0; a cell may refuse that, but not give NaN."""
    on, given = "rewards below 0", probes.cast({**supply, "rewards": supply["rewards"] - 0.5}, torch.float32)
    try:
        found = evaluate(cell, given, on)
    except Broken as problem:
        return Note(f"refuses {on}: {problem}")
    require_finite(found, on)
    return f"{on} give finite advantages"


def _check_direction(cell: Cell, supply: Supply) -> str:
    """A rollout that gets more reward, all others as before, has no smaller advantage."""
    base, last = evaluate(cell, supply, ORDINARY), probes.last_tokens(supply["mask"])
    rises = []
    for rollout in range(ORDER.numel()):
        chosen = torch.eq(ORDER, rollout)
        more = {
            "rewards": supply["rewards"] + 0.01 * chosen,
            "token_rewards": supply["token_rewards"] + 0.01 * (last & chosen.view(-1, 1)),
        }
        change = evaluate(cell, {**supply, **more}, "a rollout with more reward") - base
        rises.append(float(change[last][rollout] if is_per_token(cell) else change.view(-1)[rollout]))
    worst = min(rises)
    if worst < -TOLERANCE:
        group, rollout = divmod(rises.index(worst), probes.GROUP)
        place = f"rollout {rollout} of group {group}"
        raise Broken(f"0.01 more reward for {place} moves its own advantage by {worst:.3g}: the sign is flipped")
    if max(rises) <= TOLERANCE:
        return Note("a little more reward changes no advantage of its own rollout")
    return f"a rollout with 0.01 more reward gets an advantage up to {max(rises):.3g} higher, never lower"


def _check_batch(cell: Cell, supply: Supply) -> str:
    """Whether the advantages of a group depend on the rest of the batch: a fact."""
    supply = {**supply, "rewards": supply["rewards"].clone()}
    supply["rewards"][3] = 0.5  # a group without a signal, because some cells count those
    try:
        return _reordered(ORDER[:2], "leaving out the other groups", "")(cell, supply)
    except Broken as problem:
        found = str(problem).removesuffix(": ")
        return Note(f"uses the whole batch: {found}; that is exact, because all ranks are supplied at once")


def _reordered(order: Tensor, change: str, cause: str) -> Check:
    """Whether rollouts have the same advantages in another order."""
    reorder = partial(probes.take_rollouts, order=order)
    return invariance(lambda supply: probes.rearranged(supply, order), change, cause, reorder)


BASIC: dict[str, Check] = {
    "finite": check_finite,
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
