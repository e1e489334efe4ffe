"""Objectives of the offline loop (SFT, preferences, reward models) and the options of each.

A loss of the user's is `file.py:function`: what it learns from is what its arguments are named. Where that leaves
something open (the quality that is logged, a reference point) `file.py:row` names a row, as the tables have them.
"""

from dataclasses import replace

from whet.algorithms.cells import Cell, bind
from whet.algorithms.masking import senseless_masking
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
# Other names of objectives → the name here.
ALSO_CALLED = {"mlm": "masked_lm", "bert": "masked_lm", "clm": "lm", "mdlm": "denoise", "diffusion": "denoise"}


def objective_row(objective: ObjectiveConfig) -> Row:
    """The row of an objective with its options set; a ValueError for an unknown name or option."""
    row, given = _row(objective.name), objective.options
    require_options(optional_cell(row), f"objective '{objective.name}'", given)
    if isinstance(row, Objective) and row.masking is not None:
        return replace(row, masking=bind(row.masking, given))
    return replace(row, loss=bind(row.loss, given))


def optional_cell(row: Row) -> Cell:
    """The cell whose options a recipe sets: how tokens are masked, else the loss."""
    masking = row.masking if isinstance(row, Objective) else None
    return row.loss if masking is None else masking


def hides_tokens(objective: ObjectiveConfig) -> bool:
    """Whether it trains a bidirectional model, which predicts masked tokens."""
    row = objective_row(objective)
    return isinstance(row, Objective) and row.masking is not None


def refuse_objective(objective: ObjectiveConfig, *, has_data: bool, has_text: bool, reference: str) -> None:
    """Raises a ValueError for what the objective cannot work with."""
    row = objective_row(objective)
    wrong = senseless(row.loss) if objective.name in ROWS else ""
    if isinstance(row, Objective) and row.masking is not None:
        wrong = senseless_masking(row.masking)
    if wrong:
        raise ValueError(f"objective.{wrong}")
    if isinstance(row, Objective) and row.reads == "text" and not has_text:
        raise ValueError(
            f"objective {objective.name!r} learns from a text: set task: {{name: corpus, path: FILE}}, "
            "or use objective sft for rows"
        )
    if not isinstance(row, Objective) and not has_data:
        raise ValueError(f"objective {objective.name!r} learns from data: set data, e.g. data: pairs.jsonl")
    if reference and not (isinstance(row, Preference) and row.needs_reference):
        raise ValueError(f"objective {objective.name!r} compares with no reference: leave reference out")


def _row(name: str) -> Row:
    if name in ALSO_CALLED:
        raise ValueError(f"unknown objective {name!r}; did you mean {ALSO_CALLED[name]!r}? (known: {', '.join(ROWS)})")
    if ":" not in name:
        return ROWS[one_of(name, ROWS, what="objective")]
    found, what = load_named(name, "objective"), f"objective '{name}'"
    stated = found if isinstance(found, Preference | RewardObjective) else None
    loss = own_function(name, "objective") if stated is None else stated.loss
    unit = kind_by_terms(loss, what, SUPPLIED, KNOWN_BY)
    row = stated or own_row(loss, unit)
    if isinstance(row, Preference) and row.needs_point and row.point is None:
        raise ValueError(
            f"{what} takes point, which a function alone does not define: name a row in place of the function, "
            "e.g. mine = label(loss, log_ratio, 'own', point=mismatched_kl)"
        )
    return row
