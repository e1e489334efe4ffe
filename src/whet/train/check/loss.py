"""Checks of losses, per token or per unit: invariance to micro-batches, padding, packing and ranks; the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, bind, is_per_sequence, options, terms
from whet.train.check import probes
from whet.train.check.findings import (
    TOLERANCE,
    Broken,
    Check,
    Finding,
    Supply,
    Verdict,
    check_determinism,
    check_inputs,
    distances,
    note,
    passed,
    place_of,
    require_finite,
    require_same,
    run_checks,
    shape_of,
)
from whet.train.check.gradient import check_gradient, losses_of, pull, weights_of

SPLITS = (1, 3)
FAR = 20.0  # a log-ratio that a long run of several epochs does reach on single tokens
TINY = 1e-9  # a gradient that rounding may leave


def check_surrogate(cell: Cell) -> list[Finding]:
    """What holds and what does not of a loss per token, one finding per promise."""
    checks = {**BASIC, **LAYOUTS, "per sequence": _check_sequence, **SLOPES}
    return run_checks(cell, probes.surrogate_supply(), checks)


def check_unit_loss(cell: Cell, unit: str) -> list[Finding]:
    """The same of a loss per pair, labelled completion, scored answer or step."""
    checks = {**BASIC, **SLOPES, "terms": _check_terms, "options": _check_options}
    if "smoothing" in options(cell) and unit in ("pair", "preference"):
        checks["flipped labels"] = _check_flipped
    return run_checks(cell, probes.unit_supply(unit), checks)


def _check_shape(cell: Cell, supply: Supply) -> Verdict:
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        losses = losses_of(cell, probes.cast(supply, dtype), f"ordinary {name} input")
    return passed(f"one loss per {'token' if 'mask' in supply else 'unit'}: {shape_of(losses)}")


def _check_finite(cell: Cell, supply: Supply) -> Verdict:
    """Loss and gradient are numbers wherever a run may come, in the precision in which it trains."""
    inputs = _extreme_tokens(supply) if "mask" in supply else _extreme_units(supply)
    for on, given in inputs.items():
        single = probes.cast(given, torch.float32)
        require_finite(losses_of(cell, single, on), on)
        for slope in _slopes(cell, single, weights_of(single).float(), on).values():
            require_finite(slope, on, what="has a gradient of")
    return passed(f"loss and gradient are finite on {len(inputs)} inputs: {', '.join(inputs)}")


def _extreme_tokens(supply: Supply) -> dict[str, Supply]:
    unmasked = {**supply, "mask": supply["mask"].clone()}
    unmasked["mask"][2] = False  # a truncated completion that is not to be trained
    flat = torch.zeros_like(supply["advantages"])
    return {
        "ordinary input": supply,
        "ratios of exactly 1": probes.start(supply),
        "tokens of probability one": probes.certain(supply),
        f"a log-ratio of +{FAR:g}": probes.far(supply, FAR),
        f"a log-ratio of −{FAR:g}": probes.far(supply, -FAR),
        "advantages of 0": {**supply, "advantages": flat},
        f"a log-ratio of +{FAR:g} and an advantage of 0": {**probes.far(supply, FAR), "advantages": flat},
        "a row without a trained token": unmasked,
    }


def _extreme_units(supply: Supply) -> dict[str, Supply]:
    return {
        "ordinary input": supply,
        probes.start_name(supply): probes.start(supply),
        "units that are far on the right side": probes.apart(supply, 1.0),
        "units that are far on the wrong side": probes.apart(supply, -1.0),
        **({"completions of probability one": probes.certain(supply)} if {"chosen", "logprobs"} & {*supply} else {}),
    }


def _slopes(cell: Cell, supply: Supply, weights: Tensor, on: str) -> dict[str, Tensor]:
    """The gradients; zeros where there is none, which is another check's business."""
    found = pull(cell, supply, weights, on)
    return {term: torch.zeros_like(supply[term]) if slope is None else slope for term, slope in found.items()}


def _check_packing(cell: Cell, supply: Supply) -> Verdict:
    """The same tokens in other columns, and all in one row where no term tells rows apart, have the same loss."""
    verdict = probes.relaid_check(
        losses_of,
        probes.packed,
        "removing prompts and moving completions",
        "it takes the column for the position of a token; count with mask.cumsum(dim=1)",
    )(cell, supply)
    if "mask" in terms(cell):
        return verdict
    return probes.relaid_check(
        losses_of,
        lambda mask: torch.ones(1, int(mask.sum()), dtype=torch.bool),
        "packing all rows into one",
        "it mixes the tokens of a row without asking for mask, which says where a sequence begins and ends",
    )(cell, supply)


def _check_split(cell: Cell, supply: Supply) -> Verdict:
    """Losses and gradient are the same for any number of rows, or units, at a time."""
    mask, weights = probes.trained_mask(supply), weights_of(supply)
    each = "row" if "mask" in supply else "unit"
    cause = f"{each}s are mixed, by a mean or a deviation over the batch; use statistics of single {each}s"
    whole = losses_of(cell, supply, "ordinary input")
    slopes = _slopes(cell, supply, weights, "ordinary input")
    told = ""
    for size in SPLITS:
        on = f"{size} {each}{'s' if size > 1 else ''} at a time"
        chunks = [(probes.rows_of(supply, rows), weights[rows]) for rows in torch.split(torch.arange(len(mask)), size)]
        losses = torch.cat([losses_of(cell, chunk, on) for chunk, _ in chunks])
        told = _require_equal("", losses, whole, mask, f"computing {on}", cause)
        parts = [_slopes(cell, chunk, some, on) for chunk, some in chunks]
        for term, slope in slopes.items():
            found = torch.cat([part[term] for part in parts])
            kept = mask if mask.shape == slope.shape else torch.ones_like(slope, dtype=torch.bool)
            _require_equal(term, found, slope, kept, f"the gradient of {on}", cause)
    sizes = ", ".join(map(str, SPLITS))
    return passed(f"losses and gradient are the same for {sizes} and {len(mask)} {each}s at a time ({told})")


def _require_equal(term: str, found: Tensor, expected: Tensor, mask: Tensor, change: str, cause: str) -> str:
    labels = probes.labels_of(term, expected)
    return require_same(found[mask], expected[mask], mask.nonzero(), labels=labels, change=change, cause=cause)


def _check_order(cell: Cell, supply: Supply) -> Verdict:
    """Rows, or units, in another order have their losses in that order."""
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    mask = probes.trained_mask(supply)[order]
    expected = losses_of(cell, supply, "ordinary input")[order]
    found = losses_of(cell, probes.rows_of(supply, order), "rows in another order")
    places = mask.nonzero()
    places[:, 0] = order[places[:, 0]]
    each = "row" if "mask" in supply else "unit"
    cause = f"the place of a {each} in the batch counts; {each}s come in any order and in any micro-batch"
    labels, change = probes.labels_of("", expected), f"another order of {each}s"
    told = require_same(found[mask], expected[mask], places, labels=labels, change=change, cause=cause)
    return passed(f"{each}s in another order have the same losses ({told})")


def _check_sequence(cell: Cell, supply: Supply) -> Verdict:
    """Whether every token of a row carries the loss, and the gradient, of the whole row is what it declares."""
    mask: Tensor = supply["mask"]
    mask = mask & (mask.sum(dim=1, keepdim=True) > 1)
    first, last = mask & (mask.cumsum(dim=1) == 1), mask & (mask.flip(dims=[1]).cumsum(dim=1).flip(dims=[1]) == 1)
    of_row = (supply["advantages"] * first).sum(dim=1, keepdim=True)
    given, on = {**supply, "advantages": of_row.expand_as(mask).clone()}, "advantages that are the same for a whole row"
    losses = losses_of(cell, given, on)
    slopes = [_slopes(cell, given, ends.double(), on)["logprobs"] for ends in (first, last)]
    if not any(bool(slope.any()) for slope in slopes):
        return note("the ends of a row have no gradient, so it cannot be told whether a row has one loss")
    differ = distances(losses[last], losses[first]) > TOLERANCE
    one_loss = not bool(differ.any()) and bool((distances(*slopes) <= TOLERANCE).all())
    if one_loss and not is_per_sequence(cell):
        raise Broken(
            "every token of a row has the loss and the gradient of the whole row, and the function does not say so: "
            "put @per_sequence (of whet.algorithms.cells) above it, or it may be weighed once per token"
        )
    if is_per_sequence(cell) and not one_loss:
        what = "losses" if bool(differ.any()) else "gradients"
        raise Broken(
            f"is declared @per_sequence, and the first and the last token of a row have different {what} on {on}: "
            "leave the declaration out, or give every token the loss of its row"
        )
    return passed(f"one loss per {'sequence, as it is declared' if one_loss else 'token'}")


def _check_direction(cell: Cell, supply: Supply) -> Verdict:
    """At the start what is good is pushed up and what is bad down; a token without an advantage is left alone."""
    if "advantages" in supply and "advantages" not in terms(cell):
        return note("takes no advantages, so there is no direction to check")
    on, (given, wanted) = probes.start_name(supply), probes.directions(probes.start(supply))
    slopes = _slopes(cell, given, weights_of(given), on)
    idle = []
    for term, sign in ((term, sign) for term in wanted for sign in (1.0, -1.0, 0.0)):
        at, push = wanted[term] == sign, -slopes[term]  # a step of gradient descent goes against the slope
        way = {1.0: "go up", -1.0: "go down", 0.0: "stay"}[sign]
        against = at & (push * sign < -TINY if sign else push.abs() > TINY)
        if bool(against.any()):
            index = against.nonzero()[0]
            where = place_of(index, probes.labels_of(term, push))
            why = "a sign is flipped, or sides are swapped" if sign else "a term lacks the advantage, as k1 does"
            raise Broken(
                f"at {on}, {term} of {where} should {way} and has a gradient of {-float(push[tuple(index)]):.4g} "
                f"({int(against.sum())} of {int(at.sum())}): {why}"
            )
        still = int((at & (push.abs() <= TINY)).sum())
        if sign and still:
            idle.append(f"{still} of {int(at.sum())} {term} that should {way}")
            if still == int(at.sum()) and "advantages" in supply:
                raise Broken(f"at {on}, no gradient at all for {term} that should {way}: nothing is learned from them")
    if not any(bool((slope.abs() > TINY).any()) for slope in slopes.values()):
        raise Broken(f"at {on} nothing is pushed, so nothing would ever be learned")
    if idle:
        return note(f"at {on} there is no gradient for {', '.join(idle)}; the others are pushed the right way")
    return passed(f"at {on} what is better is pushed up and what is worse down")


def _check_terms(cell: Cell, supply: Supply) -> Verdict:
    """Every term that it takes counts, be it with one of its switches set: the loop would supply it for nothing."""
    for term in (term for term in terms(cell) if term not in probes.TRAINED):
        values = supply[term]
        other = ~values if values.dtype is torch.bool else (values + 1) % 3 if term == "classes" else values + 1
        if not any(_differ(cell, cell, supply, {**supply, term: other}, flags) for flags in _flags(cell)):
            raise Broken(f"takes '{term}' and does not use it, so the loop would make it for nothing: leave it out")
    return passed("every term that it takes counts")


def _check_options(cell: Cell, supply: Supply) -> Verdict:
    """Every option changes the loss of something, be it with one of its switches set."""
    tried = {key: _other(value) for key, value in options(cell).items()}
    points = [supply, probes.start(supply), probes.apart(supply, 1.0), probes.apart(supply, -1.0)]
    for key, other in tried.items():
        changed = bind(cell, {key: other})
        if other is not None and not any(
            _differ(cell, changed, given, given, flags) for given in points for flags in _flags(cell, but=key)
        ):
            raise Broken(f"option '{key}' changes nothing from {options(cell)[key]} to {other}: use it or leave it out")
    return passed(f"every option has an effect: {', '.join(tried)}" if tried else "it has no options")


def _flags(cell: Cell, but: str = "") -> list[dict[str, bool]]:
    """The options as they are, and each switch by itself the other way."""
    return [{}, *({key: not v} for key, v in options(cell).items() if isinstance(v, bool) and key != but)]


def _other(value: object) -> object:
    """Another value of an option; None where nobody knows one."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 1.5 + 0.1 if isinstance(value, float) else None


def _differ(one: Cell, other: Cell, given: Supply, moved: Supply, flags: dict[str, bool]) -> bool:
    """Whether two losses differ anywhere; a value that is refused has been noticed."""
    try:
        found = [losses_of(bind(cell, flags), some, "") for cell, some in ((one, given), (other, moved))]
    except Broken:
        return True
    return bool((distances(*found) > 1e-12).any())


def _check_flipped(cell: Cell, supply: Supply) -> Verdict:
    """Label smoothing: if half of the labels are flipped, the sides cannot be told apart."""
    half = bind(cell, {"smoothing": 0.5})
    sides = {"chosen": "rejected", "rejected": "chosen"}
    swapped = {term: supply[term.replace(side, sides[side])] for term in supply for side in sides if side in term}
    try:
        found = [losses_of(half, given, "a smoothing of 0.5") for given in (supply, {**supply, **swapped})]
    except Broken as problem:
        return note(f"cannot be asked with half of the labels flipped: {problem}")
    if bool((distances(*found) > TOLERANCE).any()):
        return note("with a smoothing of 0.5 the two sides still differ, so it smooths something else than labels")
    return passed("with a smoothing of 0.5 the two sides are alike, as labels of which half are flipped are")


BASIC: dict[str, Check] = {
    "shape": _check_shape,
    "finite": _check_finite,
    "inputs": check_inputs,
    "determinism": check_determinism,
    "micro-batches": _check_split,
    "order": _check_order,
}
SLOPES: dict[str, Check] = {"gradient": check_gradient, "direction": _check_direction}
LAYOUTS: dict[str, Check] = {
    "padding": probes.relaid_check(
        losses_of,
        probes.widened,
        "padding by more columns",
        "it divides by the width or reads the padding; use mask.sum(dim=1), not shape[1] or mean(dim=1)",
    ),
    "mask": probes.relaid_check(
        losses_of,
        lambda mask: mask,
        "other junk outside the mask",
        "it reads tokens that the policy did not choose; multiply by mask before summing over a row",
    ),
    "packing": _check_packing,
}
