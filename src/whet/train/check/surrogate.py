"""Checks of a loss per token: invariance to micro-batches, padding, packing and ranks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, terms
from whet.train.check import probes
from whet.train.check.findings import (
    Check,
    Finding,
    Supply,
    Verdict,
    check_determinism,
    check_inputs,
    passed,
    require_finite,
    require_same,
    run_checks,
    shape_of,
)
from whet.train.check.gradient import check_direction, check_gradient, pull, token_losses, token_weights

ROW_TOKEN = ("row", "token")
SPLITS = (1, 3)
EXTRA_COLUMNS = 5
FAR = 20.0  # a log-ratio that a long run of several epochs does reach on single tokens


def check_surrogate(cell: Cell) -> list[Finding]:
    """What holds and what does not, one finding per promise."""
    supply = probes.surrogate_supply()
    checks: dict[str, Check] = {
        "shape": partial(_check_shape, supply=supply),
        "finite": partial(_check_finite, supply=supply),
        "inputs": partial(check_inputs, supply=supply),
        "determinism": partial(check_determinism, supply=supply),
        "padding": partial(_check_padding, supply=supply),
        "mask": partial(_check_mask, supply=supply),
        "packing": partial(_check_packing, supply=supply),
        "micro-batches": partial(_check_split, supply=supply),
        "order": partial(_check_order, supply=supply),
        "gradient": partial(check_gradient, supply=supply),
        "direction": partial(check_direction, supply=supply),
    }
    return run_checks(cell, checks)


def _check_shape(cell: Cell, supply: Supply) -> Verdict:
    """(B, T) in, (B, T) out."""
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        token_losses(cell, probes.cast(supply, dtype), f"ordinary {name} input")
    return passed(f"one loss per token: {shape_of(supply['mask'])} in, the same out")


def _check_finite(cell: Cell, supply: Supply) -> Verdict:
    """Loss and gradient are numbers wherever a run may come, in the precision in which it trains."""
    unmasked = {**supply, "mask": supply["mask"].clone()}
    unmasked["mask"][2] = False  # a truncated completion that is not to be trained
    flat = torch.zeros_like(supply["advantages"])
    inputs = {
        "ordinary input": supply,
        "ratios of exactly 1": probes.on_policy(supply),
        "tokens of probability one": probes.certain(supply),
        f"a log-ratio of +{FAR:g}": probes.far(supply, FAR),
        f"a log-ratio of −{FAR:g}": probes.far(supply, -FAR),
        "advantages of 0": {**supply, "advantages": flat},
        f"a log-ratio of +{FAR:g} and an advantage of 0": {**probes.far(supply, FAR), "advantages": flat},
        "a row without a trained token": unmasked,
    }
    for on, given in inputs.items():
        single = probes.cast(given, torch.float32)
        require_finite(token_losses(cell, single, on), on)
        slope = _slope(cell, single, token_weights(single["mask"]).float(), on)
        require_finite(slope, on, what="has a gradient of")
    return passed(f"loss and gradient are finite on {len(inputs)} inputs, log-ratios of ±{FAR:g} among them")


def _check_padding(cell: Cell, supply: Supply) -> Verdict:
    """More columns that no row uses change nothing."""
    wide = probes.widened(supply["mask"], EXTRA_COLUMNS)
    change = f"padding by {EXTRA_COLUMNS} more columns"
    cause = "it divides by the width or reads the padding; use mask.sum(dim=1), not shape[1] or mean(dim=1)"
    return passed(f"more padding changes nothing ({_compare(cell, supply, wide, change, cause)})")


def _check_mask(cell: Cell, supply: Supply) -> Verdict:
    """What stands on prompts, tools' answers and padding does not matter."""
    cause = "it reads tokens that the policy did not choose; multiply by mask before summing over a row"
    told = _compare(cell, supply, supply["mask"], "other junk outside the mask", cause)
    return passed(f"what stands outside the mask does not matter ({told})")


def _check_packing(cell: Cell, supply: Supply) -> Verdict:
    """The same tokens in other columns, or all in one row where no term tells rows apart, have the same loss."""
    cause = "it takes the column for the position of a token; count with mask.cumsum(dim=1)"
    told = _compare(cell, supply, probes.packed(supply["mask"]), "removing prompts and moving completions", cause)
    if "mask" in terms(cell):
        return passed(f"without prompts and in other columns the losses are the same ({told})")
    one_row = torch.ones(1, int(supply["mask"].sum()), dtype=torch.bool)
    cause = "it mixes the tokens of a row without asking for mask, which says where a sequence begins and ends"
    told = _compare(cell, supply, one_row, "packing all rows into one", cause)
    return passed(f"in other columns, and packed into one row, the losses are the same ({told})")


def _compare(cell: Cell, supply: Supply, mask: Tensor, change: str, cause: str) -> str:
    """The losses of the trained tokens, against the same tokens laid out by another mask."""
    expected = token_losses(cell, supply, "ordinary input")[supply["mask"]]
    found = token_losses(cell, probes.relaid(supply, mask, seed=1), f"the same tokens after {change}")
    places = supply["mask"].nonzero()
    return require_same(found[mask], expected, places, labels=ROW_TOKEN, change=change, cause=cause)


def _check_split(cell: Cell, supply: Supply) -> Verdict:
    """Losses and gradient are the same for any number of rows at a time."""
    mask: Tensor = supply["mask"]
    weights = token_weights(mask)
    cause = "rows are mixed, by a mean or a deviation over the batch; use statistics of single rows, or the advantage"
    same = partial(require_same, places=mask.nonzero(), labels=ROW_TOKEN, cause=cause)
    whole = token_losses(cell, supply, "ordinary input")[mask]
    slope = _slope(cell, supply, weights, "ordinary input")[mask]
    told = ""
    for size in SPLITS:
        on = f"{size} row{'s' if size > 1 else ''} at a time"
        parts = torch.split(torch.arange(len(mask)), size)
        chunks = [(probes.rows_of(supply, rows), weights[rows]) for rows in parts]
        losses = torch.cat([token_losses(cell, chunk, on) for chunk, _ in chunks])
        told = same(losses[mask], whole, change=f"computing {on}")
        slopes = torch.cat([_slope(cell, chunk, each, on) for chunk, each in chunks])
        same(slopes[mask], slope, change=f"the gradient of {on}")
    sizes = ", ".join(map(str, SPLITS))
    return passed(f"losses and gradient are the same for {sizes} and {len(mask)} rows at a time ({told})")


def _slope(cell: Cell, supply: Supply, weights: Tensor, on: str) -> Tensor:
    """The gradient; zeros where there is none, which is another check's business."""
    slope = pull(cell, supply, weights, on)
    return torch.zeros_like(weights) if slope is None else slope


def _check_order(cell: Cell, supply: Supply) -> Verdict:
    """Rows in another order have their losses in that order."""
    mask: Tensor = supply["mask"]
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    expected = token_losses(cell, supply, "ordinary input")[order]
    found = token_losses(cell, probes.rows_of(supply, order), "rows in another order")
    chosen = mask[order]
    places = torch.stack([order[chosen.nonzero()[:, 0]], chosen.nonzero()[:, 1]], dim=1)
    cause = "the place of a row in the batch counts; rows come in any order and in any micro-batch"
    told = require_same(
        found[chosen], expected[chosen], places, labels=ROW_TOKEN, change="another order of rows", cause=cause
    )
    return passed(f"rows in another order have the same losses ({told})")
