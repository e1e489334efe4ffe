"""Objectives of the offline loop (SFT, preferences, reward models) and the options of each.

A loss of the user's is `file.py:function`: what it learns from is what its arguments are named. Where that leaves
something open (the quality that is logged, a reference point) `file.py:row` names a row, as the tables have them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from whet.algorithms.cells import bind, options
from whet.algorithms.preference.preference_table import (
    KNOWN_BY,
    PREFERENCES,
    REWARDS,
    SUPPLIED,
    Preference,
    RewardObjective,
    own_row,
    senseless,
)
from whet.algorithms.table import OBJECTIVES, Objective
from whet.config.own import kind_by_terms, own_function, require_options
from whet.config.parts import ObjectiveConfig
from whet.config.section import one_of
from whet.imports import load_named

Row = Objective | Preference | RewardObjective
ROWS: dict[str, Row] = {**OBJECTIVES, **PREFERENCES, **REWARDS}


def objective_row(objective: ObjectiveConfig) -> Row:
    """What is trained and by which loss, its options set."""
    row = _row(objective.name)
    return replace(row, loss=bind(row.loss, objective.options))


def refuse_objective(objective: ObjectiveConfig, *, has_data: bool, reference: str) -> None:
    """Raises a ValueError for an unknown name or option, and for what the objective cannot work with."""
    is_packaged, loss = objective.name in ROWS, _row(objective.name).loss
    require_options(loss, f"objective '{objective.name}'", objective.options)
    for key, value in objective.options.items():
        _require_type(key, value, options(loss)[key], least=0.0 if is_packaged else -inf)
    row = objective_row(objective)
    wrong = senseless(row.loss) if is_packaged else ""
    if wrong:
        raise ValueError(f"objective.{wrong}")
    if not isinstance(row, Objective) and not has_data:
        raise ValueError(f"objective {objective.name!r} learns from data: say where it is, e.g. data: pairs.jsonl")
    if reference and not (isinstance(row, Preference) and row.needs_reference):
        raise ValueError(f"objective {objective.name!r} compares with no reference: leave reference out")


def _row(name: str) -> Row:
    if ":" not in name:
        return ROWS[one_of(name, ROWS, what="objective")]
    found, what = load_named(name, "objective"), f"objective '{name}'"
    stated = found if isinstance(found, Preference | RewardObjective) else None
    loss = own_function(name, "objective") if stated is None else stated.loss
    unit = kind_by_terms(loss, what, SUPPLIED, KNOWN_BY)
    row = stated or own_row(loss, unit)
    if isinstance(row, Preference) and row.needs_point and row.point is None:
        raise ValueError(
            f"{what} takes point and does not say how that is made: name a row in place of the function, "
            "e.g. mine = label(loss, log_ratio, 'own', point=mismatched_kl)"
        )
    return row


def _require_type(key: str, value: Any, default: Any, *, least: float) -> None:
    wanted = type(default)
    is_whole = wanted is float and type(value) is int
    if default is not None and type(value) is not wanted and not is_whole:
        raise ValueError(f"objective.{key} is {value!r} and must be a {wanted.__name__}")
    if wanted in (int, float) and not least <= value < inf:
        raise ValueError(f"objective.{key} is {value!r} and must be a number{' from 0 on' if least == 0 else ''}")
