"""Building blocks of the checks: calling a cell without trusting it, comparing tensors, reporting findings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, terms
from whet.imports import one_line

Outcome = Literal["passed", "failed", "note"]
Supply = Mapping[str, Any]  # every term that a loop may supply, by name
# Sums in another order differ by 1e-15 in float64 and by 1e-6 in a cell that casts to float32; a wrong mean by 1e-2.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one check found, in a sentence."""

    check: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The end of a check that did not fail."""

    outcome: Outcome
    sentence: str


class Broken(Exception):
    """The cell breaks a promise; the message is the sentence of the finding."""


Check = Callable[[Cell], Verdict]


def passed(sentence: str) -> Verdict:
    """The promise holds."""
    return Verdict(outcome="passed", sentence=sentence)


def note(sentence: str) -> Verdict:
    """A fact that is neither right nor wrong."""
    return Verdict(outcome="note", sentence=sentence)


def run_checks(cell: Cell, checks: Mapping[str, Check]) -> list[Finding]:
    """One finding per check. The first says whether the result is of any use; if not, the others are not made."""
    first, *rest = checks
    found = _found(cell, first, checks[first])
    if found.outcome == "failed":
        unmade = f"not checked because of that: {', '.join(rest)}"
        return [found, Finding(check="rest", outcome="note", sentence=unmade)]
    return [found, *(_found(cell, name, checks[name]) for name in rest)]


def _found(cell: Cell, name: str, check: Check) -> Finding:
    try:
        verdict = check(cell)
    except Broken as problem:
        return Finding(check=name, outcome="failed", sentence=str(problem))
    return Finding(check=name, outcome=verdict.outcome, sentence=verdict.sentence)


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
        place = ", ".join(str(int(index)) for index in wrong[0])
        value = float(found[tuple(wrong[0])])
        count = f"{len(wrong)} of {found.numel()} values are not finite"
        raise Broken(f"{what} {value} at [{place}] on {on} ({count})")


def distances(found: Tensor, expected: Tensor) -> Tensor:
    """|found − expected| relative to the size of what is expected; infinite where only one of them is a number."""
    apart = (found.double() - expected.double()).abs() / (1 + expected.double().abs())
    both_nan = found.isnan() & expected.isnan()
    return torch.where(both_nan, 0.0, apart.nan_to_num(nan=torch.inf))


def require_same(
    found: Tensor, expected: Tensor, places: Tensor, *, labels: tuple[str, str], change: str, cause: str
) -> str:
    """How far two lists of values are apart at most; raises where that is too far, with the worst of `places`."""
    apart = distances(found, expected)
    if bool((apart <= TOLERANCE).all()):
        return f"{float(apart.max()):.1g} apart at most"
    worst = int(apart.argmax())
    first, second = (int(index) for index in places[worst])
    count = f"{int((apart > TOLERANCE).sum())} of {len(apart)} differ"
    raise Broken(
        f"{change} changes {labels[0]} {first}, {labels[1]} {second} from {float(expected[worst]):.6g} "
        f"to {float(found[worst]):.6g} ({count}): {cause}"
    )


def check_inputs(cell: Cell, supply: Supply) -> Verdict:
    """The cell leaves its inputs as they were."""
    given = {name: copied(supply[name]) for name in terms(cell)}
    answer(cell, list(given.values()), "ordinary input")
    changed = [name for name in given if isinstance(given[name], Tensor) and not _equal(given[name], supply[name])]
    if changed:
        raise Broken(
            f"changes its input {_listed(changed)} in place: what is computed from it later is wrong; "
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
    if not _equal(results[0], results[1]):
        apart = float((results[0] - results[1]).abs().max())
        raise Broken(
            f"two calls with the same input are {apart:.3g} apart: it keeps something between calls, "
            "or draws random numbers"
        )
    if not _equal(results[0], results[2]):
        apart = float((results[0] - results[2]).abs().max())
        raise Broken(
            f"another seed of torch's random numbers moves the result by {apart:.3g}: it draws random numbers, so a "
            "resumed run is another run"
        )
    return passed("the same input gives the same result, whatever the seed")


def copied(value: Any) -> Any:
    """A tensor that may be changed."""
    return value.clone() if isinstance(value, Tensor) else value


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
