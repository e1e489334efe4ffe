"""`whet check-loss`: whether the loop can train with a loss or an advantage, packaged or the user's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.algorithms.cells import Cell, bind, name, options, terms
from whet.algorithms.preference import preference_table as units
from whet.algorithms.table import ADVANTAGES, ALGORITHMS, KL_ESTIMATORS, SUPPLIED, SURROGATES
from whet.config.own import kind_by_terms, own_function, require_options
from whet.errors import UserError, nearest
from whet.imports import load_named
from whet.train.check.advantage import check_advantage
from whet.train.check.findings import Finding
from whet.train.check.loss import check_loss_of

TERMS: dict[str, tuple[str, ...]] = {str(unit): known for unit, known in units.SUPPLIED.items()}
TERMS |= {kind: SUPPLIED[kind] for kind in ("surrogate", "advantage")}
KNOWN_BY: list[tuple[tuple[str, ...], str]] = [
    *units.KNOWN_BY,
    (("logprobs",), "surrogate"),
    *(((rewards,), "advantage") for rewards in ("rewards", "token_rewards")),
]
LOSSES = {key: row.loss for key, row in units.PREFERENCES.items()}
LOSSES |= {key: row.loss for key, row in units.REWARDS.items()}
PACKAGED: dict[str, Cell] = {**SURROGATES, **ADVANTAGES, **KL_ESTIMATORS, **LOSSES}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A checked cell with its findings."""

    cell: str
    kind: str
    terms: tuple[str, ...]
    options: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(finding.outcome == "failed" for finding in self.findings)


def check_loss(spec: str, settings: Mapping[str, Any]) -> Report:
    """Checks the cell that `spec` names, with these options set."""
    try:
        cell = find_cell(spec)
        kind = kind_of(cell, spec)
        require_options(cell, spec, settings)
    except ValueError as error:
        raise UserError(str(error)) from error
    cell = bind(cell, settings)
    findings = check_advantage(cell) if kind == "advantage" else check_loss_of(cell, kind)
    return Report(cell=spec, kind=kind, terms=terms(cell), options=options(cell), findings=tuple(findings))


def find_cell(spec: str) -> Cell:
    """A packaged cell by its name, or a user's function, or the loss of a user's row."""
    if spec in PACKAGED:
        return PACKAGED[spec]
    if spec in ALGORITHMS:
        row = ALGORITHMS[spec]
        cells = f"{name(row.advantage)} and {name(row.surrogate)}"
        raise UserError(f"{spec} is an algorithm: check its advantage and its surrogate, {cells}")
    if ":" not in spec:
        raise UserError(
            f"no surrogate, advantage, KL estimator or loss is called '{spec}'{nearest(spec, PACKAGED)} "
            "(your own is module:function or path/to/file.py:function)"
        )
    found = load_named(spec, "loss")
    return found.loss if isinstance(found, units.Preference | units.RewardObjective) else own_function(spec, "loss")


def kind_of(cell: Cell, spec: str) -> str:
    """Surrogate, advantage, or the unit of a loss, by the terms it takes."""
    return kind_by_terms(cell, spec, TERMS, KNOWN_BY)
