"""Checks of losses, per token or per unit: invariance to micro-batches, padding, packing and ranks; the gradient."""

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, bind, is_per_sequence, options, terms
from whet.train.check import probes
from whet.train.check.findings import (
    LAYOUTS,
    ORDINARY,
    Broken,
    Check,
    Finding,
    Note,
    differ,
    evaluate,
    invariance,
    require_same,
    result_mask,
    run_checks,
)
from whet.train.check.gradient import check_finite, check_gradient, gradients, weights_of
from whet.train.check.probes import Supply

SPLITS = (1, 3)
TINY = 1e-9  # a gradient that rounding may leave


def check_loss_of(cell: Cell, kind: str) -> list[Finding]:
    """One finding per check of a surrogate, or of a loss per pair, labelled completion, scored answer or step."""
    checks = {**BASIC}
    if kind == "surrogate":
        checks |= {**LAYOUTS, "per sequence": _check_sequence}
        if "mask" not in terms(cell):  # it cannot know where the sequences of a row begin and end
            checks["packing"] = ONE_ROW
    checks |= {"gradient": check_gradient, "direction": _check_direction}
    if kind != "surrogate":
        checks["terms and options"] = _check_use
    return run_checks(cell, probes.supply_for(kind), checks)


def _check_split(cell: Cell, supply: Supply) -> str:
    """Losses and gradient are the same for any number of rows, or units, at a time."""
    mask, weights = result_mask(cell, supply), weights_of(cell, supply)

    def computed(rows: Tensor, on: str) -> dict[str, Tensor]:
        given = probes.rows_of(supply, rows)
        losses = evaluate(cell, given, on).masked_fill(~mask[rows], 0.0)
        return {"": losses, **gradients(cell, given, weights[rows], on)}

    rows, distance = torch.arange(len(mask)), ""
    together = computed(rows, ORDINARY)
    for size in SPLITS:
        on = f"{size} row{'s' * (size > 1)} at a time"
        parts = [computed(some, on) for some in torch.split(rows, size)]
        for term, expected in together.items():
            change = f"computing {on}" if not term else f"computing the gradient of {term} {on}"
            cause = "rows are mixed, by a mean or a deviation over the batch; use statistics of single rows"
            distance = require_same(torch.cat([part[term] for part in parts]), expected, change, cause)
    sizes = ", ".join(map(str, SPLITS))
    return f"losses and gradient are the same for {sizes} and {len(mask)} rows at a time ({distance})"


def _check_sequence(cell: Cell, supply: Supply) -> str:
    """@per_sequence is declared if, and only if, each token of a row has the loss and the gradient of its sequence."""
    mask = supply["mask"] & (supply["mask"].sum(dim=1, keepdim=True) > 1)
    first, last = mask & (mask.cumsum(dim=1) == 1), probes.last_tokens(mask)
    of_row = (supply["advantages"] * first).sum(dim=1, keepdim=True)
    given, on = (
        {**supply, "advantages": of_row.expand_as(mask).clone()},
        "advantages that are the same for all tokens of a row",
    )
    losses = evaluate(cell, given, on)
    of_first, of_last = (gradients(cell, given, end.double(), on)["logprobs"] for end in (first, last))
    if not bool(of_first.any() | of_last.any()):
        return Note("the ends of a row have no gradient, so one loss per sequence cannot be told from one per token")
    one_loss = not differ(losses[last], losses[first]) and not differ(of_last, of_first)
    if one_loss and not is_per_sequence(cell):
        raise Broken(
            "every token of a row has the loss and the gradient of its sequence, which the function does not declare: "
            "put @per_sequence (of whet.algorithms.cells) above it, or it may be weighed once per token"
        )
    if is_per_sequence(cell) and not one_loss:
        raise Broken(
            "is declared @per_sequence, and the first and the last token of a row have different losses or gradients "
            f"on {on}: leave the declaration out, or give every token the loss of its row"
        )
    return f"one loss per {'sequence, as it is declared' if one_loss else 'token'}"


def _check_direction(cell: Cell, supply: Supply) -> str:
    """At the first step what is good is pushed up and what is bad down; a token without an advantage does not move."""
    if "advantages" in supply and "advantages" not in terms(cell):
        return Note("takes no advantages, so there is no direction to check")
    on, (given, expected) = f"at {probes.FIRST_STEP}", probes.directions(probes.first_step(supply))
    found = gradients(cell, given, weights_of(cell, given), on)
    if not any(bool((slope.abs() > TINY).any()) for slope in found.values()):
        raise Broken(f"{on} no gradient is above 0, so nothing would ever be learned")
    idle = []
    for term, sign in ((term, sign) for term in expected for sign in (1.0, -1.0, 0.0)):
        at, push = expected[term] == sign, -found[term]  # a step of gradient descent goes against the slope
        way = {1.0: "go up", -1.0: "go down", 0.0: "stay"}[sign]
        against = (at & (push * sign < -TINY if sign else push.abs() > TINY)).nonzero()
        if len(against):
            why = "a sign is flipped, or sides are swapped" if sign else "a term lacks the advantage, as k1 does"
            raise Broken(
                f"{on} {term} at {against[0].tolist()} should {way} and has a gradient of "
                f"{-float(push[tuple(against[0])]):.4g} ({len(against)} of {int(at.sum())}): {why}"
            )
        still = int((at & (push.abs() <= TINY)).sum())
        if sign and still == int(at.sum()) and "advantages" in supply:
            raise Broken(f"{on} no gradient at all for {term} that should {way}: nothing is learned from them")
        if sign and still:
            idle.append(f"{still} of {int(at.sum())} {term} that should {way}")
    if idle:
        return Note(f"{on} there is no gradient for {', '.join(idle)}; the others are pushed the right way")
    return f"{on} what is better is pushed up and what is worse down"


def _check_use(cell: Cell, supply: Supply) -> str:
    """Every term and every option changes some loss, perhaps with one of the switches set."""
    inputs = [supply, probes.first_step(supply), probes.apart(supply, 1.0), probes.apart(supply, -1.0)]
    switches = [{}, *({key: not value} for key, value in options(cell).items() if isinstance(value, bool))]
    cells = [bind(cell, switch) for switch in switches]
    for term in (term for term in terms(cell) if term not in probes.TRAINED):
        if not any(_differ(one, given, one, _with_other(given, term)) for one in cells for given in inputs):
            raise Broken(f"takes '{term}' and does not use it, so the loop would make it for nothing: leave it out")
    for key, value in options(cell).items():
        other = not value if isinstance(value, bool) else value * 1.5 + 1 if isinstance(value, int | float) else value
        changed = {key: other}
        if other != value and not any(
            _differ(one, given, bind(one, changed), given) for one in cells for given in inputs
        ):
            raise Broken(f"option '{key}' changes nothing from {value} to {other}: use it or leave it out")
    return "every term and every option has an effect"


def _with_other(supply: Supply, term: str) -> Supply:
    """The supply with other values of a term."""
    values = supply[term]
    other = ~values if values.dtype is torch.bool else (values + 1) % 3 if term == "classes" else values + 1
    return {**supply, term: other}


def _differ(one: Cell, given: Supply, other: Cell, changed: Supply) -> bool:
    """Whether two losses differ anywhere; a value that is refused has been noticed."""
    try:
        return differ(evaluate(one, given, ""), evaluate(other, changed, ""), 1e-12)
    except Broken:
        return True


BASIC: dict[str, Check] = {
    "finite": check_finite,
    "micro-batches": _check_split,
    "order": invariance(
        probes.reversed_rows,
        "another order of rows",
        "the place of a row in the batch counts; rows come in any order and in any micro-batch",
        reorder=lambda values: values.flip(dims=[0]),
    ),
}
ONE_ROW = invariance(
    probes.one_row,
    "packing all rows into one",
    "it takes the column for the position of a token, or mixes tokens without taking mask, which tells sequences apart",
)
