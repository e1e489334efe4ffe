"""`whet check-loss`: whether a surrogate or an advantage, a user's or ours, keeps what the loop builds on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.algorithms.cells import Cell, bind, name, options, terms
from whet.algorithms.table import ADVANTAGES, ALGORITHMS, CELLS, KL_ESTIMATORS, SUPPLIED, SURROGATES
from whet.errors import UserError, nearest
from whet.imports import load_named
from whet.train.check.advantage import check_advantage
from whet.train.check.findings import Finding
from whet.train.check.surrogate import check_surrogate

CHECKED: dict[str, Callable[[Cell], list[Finding]]] = {"surrogate": check_surrogate, "advantage": check_advantage}
PACKAGED: dict[str, Cell] = {**SURROGATES, **ADVANTAGES, **KL_ESTIMATORS}
HOW = "your own is module:function or path/to/file.py:function"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was checked and what was found."""

    cell: str
    kind: str
    terms: tuple[str, ...]
    options: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether a promise is broken."""
        return any(finding.outcome == "failed" for finding in self.findings)


def check_loss(spec: str, settings: Mapping[str, Any]) -> Report:
    """Checks the cell that `spec` names, with these options set."""
    cell = find_cell(spec)
    kind = kind_of(cell, spec)
    known = options(cell)
    for key in settings:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise UserError(f"{spec} has no option '{key}'{nearest(key, known)} ({has})")
    cell = bind(cell, settings)
    findings = tuple(CHECKED[kind](cell))
    return Report(cell=spec, kind=kind, terms=terms(cell), options=options(cell), findings=findings)


def find_cell(spec: str) -> Cell:
    """A packaged cell by its name, or a user's function."""
    if spec in PACKAGED:
        return PACKAGED[spec]
    if spec in ALGORITHMS:
        row = ALGORITHMS[spec]
        cells = f"{name(row.advantage)} and {name(row.surrogate)}"
        raise UserError(f"{spec} is an algorithm: check its advantage and its surrogate, {cells}")
    for kind, cells_of_kind in CELLS.items():
        if spec in cells_of_kind:
            raise UserError(f"{spec} is a {kind}: only surrogates, advantages and KL estimators can be checked")
    if ":" not in spec:
        raise UserError(f"no surrogate, advantage or KL estimator '{spec}'{nearest(spec, PACKAGED)} ({HOW})")
    found = load_named(spec, "loss")
    if isinstance(found, type) or not callable(found):
        raise UserError(f"loss '{spec}' is a {type(found).__name__}, not a function")
    return found


def kind_of(cell: Cell, spec: str) -> str:
    """Surrogate or advantage, by the terms it takes."""
    parameters = _parameters(cell, spec)
    taken = [key for key, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    _refuse_unknown(parameters, taken, spec)
    for key, parameter in parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise UserError(f"{spec}: option '{key}' has no default: give it one, e.g. {key}=0.2")
    kind = "surrogate" if "logprobs" in taken else "advantage"
    if kind == "advantage" and not {"rewards", "token_rewards"} & set(taken):
        raise UserError(f"{spec} takes {_listed(taken)}, but neither logprobs nor rewards or token_rewards: {_kinds()}")
    strange = [key for key in taken if key not in SUPPLIED[kind]]
    if strange:
        why = "takes logprobs and so is a surrogate" if kind == "surrogate" else "is an advantage"
        raise UserError(f"{spec} {why}, which is not supplied with {_listed(strange)}: {_kinds()}")
    return kind


def _parameters(cell: Cell, spec: str) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(cell).parameters)
    except (TypeError, ValueError) as error:
        raise UserError(f"{spec} does not say what it takes: write a plain function around it") from error


def _refuse_unknown(parameters: Mapping[str, inspect.Parameter], taken: list[str], spec: str) -> None:
    known = [*dict.fromkeys(key for kind in CHECKED for key in SUPPLIED[kind])]
    for key in taken:
        parameter = parameters[key]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UserError(f"{spec} takes *{key}: name what it needs, because the loop supplies terms by their names")
        if key in known:
            continue
        if parameter.default is not parameter.empty:
            raise UserError(f"{spec} takes '{key}' by position; make it an option: write *, before the first option")
        raise UserError(f"{spec} takes '{key}', which the loop does not supply{nearest(key, known)} ({_kinds()})")


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


def _kinds() -> str:
    return f"a surrogate takes {_some('surrogate')}; an advantage {_some('advantage')}"


def _some(kind: str) -> str:
    return f"some of {', '.join(SUPPLIED[kind])}"
