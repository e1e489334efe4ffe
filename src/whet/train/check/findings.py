"""Building blocks of the checks: calling a cell without trusting it, comparing tensors, reporting findings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, terms
from whet.imports import one_line

Outcome = Literal["passed", "failed", "note"]
Supply = Mapping[str, Any]  # every term that a loop may supply, by name
Verdict = tuple[Outcome, str]  # the end of a check that did not fail
Check = Callable[[Cell, Supply], Verdict]
# Sums in another order differ by 1e-15 in float64 and by 1e-6 in a cell that casts to float32; a wrong mean by 1e-2.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found, in a sentence."""

    check: str
    outcome: Outcome
    sentence: str


class Broken(Exception):
    """The cell breaks a promise; the message is the sentence of the finding."""


def passed(sentence: str) -> Verdict:
    """The promise holds."""
    return "passed", sentence


def note(sentence: str) -> Verdict:
    """A fact that is neither right nor wrong."""
    return "note", sentence


def run_checks(cell: Cell, supply: Supply, checks: Mapping[str, Check]) -> list[Finding]:
    """One finding per check. The first says whether the result is of any use; if not, the others are not made."""
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            outcome, sentence = check(cell, supply)
        except Broken as problem:
            outcome, sentence = "failed", str(problem)
        findings.append(Finding(check=name, outcome=outcome, sentence=sentence))
        if findings[0].outcome == "failed":
            unmade = f"not checked because of that: {', '.join([*checks][1:])}"
            return [*findings, Finding(check="rest", outcome="note", sentence=unmade)]
    return findings


def attempt(cell: Cell, supply: Supply, on: str) -> Tensor:
    """The tensor that the cell gives for copies of the terms it names; `on` says which input it was."""
    found = answer(cell, [copied(supply[name]) for name in terms(cell)], on)
    if not isinstance(found, Tensor):
        raise Broken(f"returns a {type(found).__name__} on {on}, not a tensor")
    if found.dtype not in (torch.float32, torch.float64):
        raise Broken(f"returns {str(found.dtype).removeprefix('torch.')} on {on}, not float32 or float64")
    return found


def answer(cell: Cell, arguments: Sequence[Any], on: str) -> Any:
    """Whatever the cell gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cell(*arguments)
        except (Exception, SystemExit) as error:
            raise Broken(f"raises {one_line(error)} on {on}") from error


def shape_of(tensor: Tensor) -> str:
    """(7, 9), or what it is called when there is no shape."""
    return "a single number" if tensor.dim() == 0 else str(tuple(tensor.shape))


def require_finite(found: Tensor, on: str, what: str = "returns") -> None:
    """No NaN and no infinity anywhere: weight 0 does not help outside the mask, because 0·NaN is NaN."""
    wrong = (~found.isfinite()).nonzero()
    if len(wrong):
        count = f"{len(wrong)} of {found.numel()} values are not finite"
        raise Broken(f"{what} {float(found[tuple(wrong[0])])} at {wrong[0].tolist()} on {on} ({count})")


def distances(found: Tensor, expected: Tensor) -> Tensor:
    """|found − expected| relative to the size of what is expected; infinite where only one of them is a number."""
    apart = (found.double() - expected.double()).abs() / (1 + expected.double().abs())
    both_nan = found.isnan() & expected.isnan()
    return torch.where(both_nan, 0.0, apart.nan_to_num(nan=torch.inf))


def place_of(index: Sequence[int] | Tensor, labels: Sequence[str]) -> str:
    """`row 2, token 5`."""
    return ", ".join(f"{label} {int(at)}" for label, at in zip(labels, index, strict=True))


def require_same(
    found: Tensor, expected: Tensor, places: Tensor, *, labels: Sequence[str], change: str, cause: str
) -> str:
    """How far two lists of values are apart at most; raises where that is too far, with the worst of `places`."""
    apart = distances(found, expected)
    if bool((apart <= TOLERANCE).all()):
        return f"{float(apart.max()):.1g} apart at most"
    worst = int(apart.argmax())
    count = f"{int((apart > TOLERANCE).sum())} of {len(apart)} differ"
    raise Broken(
        f"{change} changes {place_of(places[worst], labels)} from {float(expected[worst]):.6g} "
        f"to {float(found[worst]):.6g} ({count}): {cause}"
    )


def check_inputs(cell: Cell, supply: Supply) -> Verdict:
    """The cell leaves its inputs as they were."""
    given = {name: copied(supply[name]) for name in terms(cell)}
    answer(cell, list(given.values()), "ordinary input")
    changed = [f"'{name}'" for name in given if not _equal(given[name], supply[name])]
    if changed:
        raise Broken(
            f"changes its input {', '.join(changed)} in place: what is computed from it later is wrong; "
            "copy it first or use the operation without the trailing underscore"
        )
    return passed("inputs are left as they were")


def check_determinism(cell: Cell, supply: Supply) -> Verdict:
    """The same inputs give the same result, whatever the state of the random numbers."""
    with torch.random.fork_rng(devices=[]):
        results = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(attempt(cell, supply, "ordinary input").double())
    if len({result.shape for result in results}) > 1:
        raise Broken("calls with the same input give results of different shapes: it keeps something between calls")
    for other, why in (
        (1, "two calls with the same input are {} apart: it keeps something between calls, or draws random numbers"),
        (2, "another seed of torch's random numbers moves the result by {}: it draws random numbers, so a resumed run "
            "is another run"),
    ):  # fmt: skip
        if not _equal(results[0], results[other]):
            raise Broken(why.format(f"{float((results[0] - results[other]).abs().max()):.3g}"))
    return passed("the same input gives the same result, whatever the seed")


def copied(value: Any) -> Any:
    """A tensor that may be changed."""
    return value.clone() if isinstance(value, Tensor) else value


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
