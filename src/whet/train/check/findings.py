"""Building blocks of the checks: calling a cell without trusting it, comparing its results, reporting findings."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, is_per_token, terms
from whet.train.check import probes
from whet.train.check.probes import Supply
from whet.user_code import one_line

Outcome = Literal["passed", "failed", "note"]
Check = Callable[[Cell, Supply], str]  # gives the sentence of its finding
ORDINARY = "ordinary input"
UNITS = ("chosen", "chosen_scores", "labels", "classes")  # the first that is supplied has the shape of a unit loss
# Sums in another order differ by 1e-15 in float64 and by 1e-6 in a cell that casts to float32; a wrong mean by 1e-2.
TOLERANCE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check, in a sentence."""

    check: str
    outcome: Outcome
    sentence: str


class Broken(Exception):
    """The cell fails a check; the message is the sentence of the finding."""


class Note(str):
    """The sentence of a finding that is neither right nor wrong."""

    __slots__ = ()


def result_mask(cell: Cell, supply: Supply) -> Tensor:
    """Where the result of a cell counts, in its shape: trained tokens, or every rollout or unit."""
    if "mask" in supply and (is_per_token(cell) or "rewards" not in supply):
        mask: Tensor = supply["mask"]
        return mask
    return torch.ones_like(next(supply[term] for term in ("rewards", *UNITS) if term in supply), dtype=torch.bool)


def evaluate(cell: Cell, supply: Supply, on: str) -> Tensor:
    """The result of the cell for copies of its terms, if the loop could use it; `on` names the input in sentences."""
    found = answer(cell, [supply[name].clone() for name in terms(cell)], on)
    if not isinstance(found, Tensor):
        raise Broken(f"returns a {type(found).__name__} on {on}, not a tensor")
    if found.dtype not in (torch.float32, torch.float64):
        raise Broken(f"returns {str(found.dtype).removeprefix('torch.')} on {on}, not float32 or float64")
    wanted = result_mask(cell, supply)
    if found.shape != wanted.shape:
        remedy = "the loop weighs and sums them"
        if "rewards" in supply:
            remedy = "one per token is declared by @per_token (of whet.algorithms.cells), one per rollout is not"
        wrong = f"returns shape {tuple(found.shape)} on {on}, not {tuple(wanted.shape)}"
        raise Broken(f"{wrong}: return one {result_name(cell, supply)}; {remedy}")
    return found


def result_name(cell: Cell, supply: Supply) -> str:
    if "rewards" in supply:
        return f"advantage per {'token' if is_per_token(cell) else 'rollout'}"
    return f"loss per {'token' if 'mask' in supply else 'unit'}"


def answer(cell: Cell, arguments: Sequence[Any], on: str) -> Any:
    """Whatever the cell returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return cell(*arguments)
        except (Exception, SystemExit) as error:
            raise Broken(f"raises {one_line(error)} on {on}") from error


def require_finite(found: Tensor, on: str, what: str = "returns") -> None:
    """No NaN and no infinity anywhere: weight 0 does not help outside the mask, because 0·NaN is NaN."""
    wrong = (~found.isfinite()).nonzero()
    if len(wrong):
        count = f"{len(wrong)} of {found.numel()} values are not finite"
        raise Broken(f"{what} {float(found[tuple(wrong[0])])} at {wrong[0].tolist()} on {on} ({count})")


def distances(found: Tensor, expected: Tensor) -> Tensor:
    """|found − expected| relative to the size of what is expected; infinite where only one of them is a number."""
    apart = (found.double() - expected.double()).abs() / (1 + expected.double().abs())
    same = (found == expected) | (found.isnan() & expected.isnan())
    return torch.where(same, 0.0, apart.nan_to_num(nan=torch.inf))


def differ(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> bool:
    return bool((distances(found, expected) > tolerance).any())


def require_same(found: Tensor, expected: Tensor, change: str, cause: str) -> str:
    """How far two tensors are apart at most; raises where that is too far, with the worst place."""
    apart = distances(found, expected)
    if not differ(found, expected):
        return f"{float(apart.detach().max()):.1g} apart at most"
    place = torch.unravel_index(apart.argmax(), apart.shape)
    count = f"{int((apart > TOLERANCE).sum())} of {apart.numel()} differ"
    raise Broken(
        f"{change} changes {[int(index) for index in place]} from {float(expected[place]):.6g} "
        f"to {float(found[place]):.6g} ({count}): {cause}"
    )


def invariance(
    transform: Callable[[Supply], Supply],
    change: str,
    cause: str,
    reorder: Callable[[Tensor], Tensor] = lambda values: values,
) -> Check:
    """A check that a change of the input changes no result that counts; `reorder` is what it does to their order."""

    def check(cell: Cell, supply: Supply) -> str:
        changed = transform(supply)
        expected, mask = reorder(evaluate(cell, supply, ORDINARY)), reorder(result_mask(cell, supply))
        expected = expected.masked_fill(~mask, 0.0)
        found = evaluate(cell, changed, change)[result_mask(cell, changed)]
        distance = require_same(torch.zeros_like(expected).masked_scatter(mask, found), expected, change, cause)
        return f"{change} changes nothing ({distance})"

    return check


# The same tokens laid out otherwise.
LAYOUTS: dict[str, Check] = {
    "padding": invariance(
        probes.padded,
        "padding with noise",
        "it reads tokens outside the mask or divides by the width; multiply by mask and divide by mask.sum(dim=1)",
    ),
    "packing": invariance(
        probes.shifted,
        "removing prompts and moving completions",
        "it takes the column for the position of a token, which mask.cumsum(dim=1) counts, or time passes over tokens "
        "that were not sampled",
    ),
}


def _check_shape(cell: Cell, supply: Supply) -> str:
    for name, dtype in {"float64": torch.float64, "float32": torch.float32}.items():
        found = evaluate(cell, probes.cast(supply, dtype), f"ordinary {name} input")
    return f"one {result_name(cell, supply)}: {tuple(found.shape)}"


def _check_inputs(cell: Cell, supply: Supply) -> str:
    """The cell does not modify its inputs."""
    given = {name: supply[name].clone() for name in terms(cell)}
    answer(cell, list(given.values()), ORDINARY)
    changed = [f"'{name}'" for name in given if not torch.equal(given[name], supply[name])]
    if changed:
        raise Broken(
            f"changes its input {', '.join(changed)} in place: what is computed from it later is wrong; "
            "copy it first or use the operation without the trailing underscore"
        )
    return "inputs are not modified"


def _check_determinism(cell: Cell, supply: Supply) -> str:
    """The same inputs give the same result, whatever the state of the random numbers."""
    with torch.random.fork_rng(devices=[]):
        results = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(evaluate(cell, supply, ORDINARY))
    if differ(results[0], results[1], 0.0):
        raise Broken("two calls with the same input give different results: it keeps a state, or draws random numbers")
    if differ(results[0], results[2], 0.0):
        raise Broken("another seed gives another result: it draws random numbers, so a resumed run is another run")
    return "the same input gives the same result, whatever the seed"


def run_checks(cell: Cell, supply: Supply, checks: Mapping[str, Check]) -> list[Finding]:
    """One finding per check, of those that all kinds share too. Without a usable shape the others are skipped."""
    findings: list[Finding] = []
    checks = {"shape": _check_shape, "inputs": _check_inputs, "determinism": _check_determinism, **checks}
    for name, check in checks.items():
        try:
            sentence = check(cell, supply)
            outcome: Outcome = "note" if isinstance(sentence, Note) else "passed"
        except Broken as problem:
            outcome, sentence = "failed", str(problem)
        findings.append(Finding(check=name, outcome=outcome, sentence=sentence))
        if findings[0].outcome == "failed":
            skipped = f"not checked because of that: {', '.join([*checks][1:])}"
            return [*findings, Finding(check="rest", outcome="note", sentence=skipped)]
    return findings
