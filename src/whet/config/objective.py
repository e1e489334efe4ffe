"""Objectives of the offline loop (SFT, preferences, reward models) and the options of each."""

from __future__ import annotations

from typing import Any, Literal

from whet.algorithms.cells import Cell, bind, options
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS, senseless
from whet.algorithms.table import OBJECTIVES
from whet.config.parts import ObjectiveConfig
from whet.config.section import one_of

Kind = Literal["imitation", "preference", "reward"]
TABLES: dict[Kind, Any] = {"imitation": OBJECTIVES, "preference": PREFERENCES, "reward": REWARDS}
KINDS: dict[str, Kind] = {name: kind for kind, table in TABLES.items() for name in table}


def kind_of(objective: ObjectiveConfig) -> Kind:
    """What is trained: a policy on answers, a policy on preferences, or a reward model."""
    return KINDS[one_of(objective.name, KINDS, what="objective")]


def bound_loss(objective: ObjectiveConfig) -> Cell:
    """The loss of an objective, its options set."""
    return bind(TABLES[kind_of(objective)][objective.name].loss, objective.options)


def refuse_objective(objective: ObjectiveConfig, *, has_data: bool, reference: str) -> None:
    """Raises a ValueError for an unknown name or option, and for what the objective cannot work with."""
    kind = kind_of(objective)
    row = TABLES[kind][objective.name]
    known = options(row.loss)
    for key, value in objective.options.items():
        one_of(key, known, what=f"option of objective {objective.name}")
        wanted = type(known[key])
        is_whole = wanted is float and type(value) is int
        if type(value) is not wanted and not is_whole:
            raise ValueError(f"objective.{key} is {value!r} and must be a {wanted.__name__}")
        if wanted in (int, float) and not 0 <= value < float("inf"):
            raise ValueError(f"objective.{key} is {value!r} and must be a number from 0 on")
    wrong = senseless(bound_loss(objective))
    if wrong:
        raise ValueError(f"objective.{wrong}")
    if kind != "imitation" and not has_data:
        raise ValueError(f"objective {objective.name!r} learns from data: say where it is, e.g. data: pairs.jsonl")
    if reference and not (kind == "preference" and row.needs_reference):
        raise ValueError(f"objective {objective.name!r} compares with no reference: leave reference out")
