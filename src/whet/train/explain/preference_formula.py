"""The losses of preferences and of reward models as one line of mathematics, as `formula` writes those of policies."""

from __future__ import annotations

from dataclasses import replace

from whet.algorithms.cells import Cell, formula, name, options
from whet.algorithms.preference.preference_table import Preference, RewardObjective
from whet.algorithms.table import Objective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.train.explain.formula import Loss, expression, paper_name, supervised_loss

# What is averaged. Every unit counts the same, on all ranks.
UNITS = {
    "pair": "pairs",
    "label": "completions",
    "preference": "pairs",
    "outcome": "completions",
    "process": "steps",
}
LETTERS = {"beta": "β", "gamma": "γ"}  # how formulas write these options
POINT = "point"


def offline_loss(config: OfflineConfig) -> Loss:
    """The loss on rows that exist."""
    row = objective_row(config.objective)
    if isinstance(row, Objective):
        return supervised_loss(row)
    if isinstance(row, RewardObjective):
        return reward_loss(row)
    made = preference_loss(row)
    reference = f"π_ref = {config.reference or 'the model before the first step'}"
    return replace(made, where=(*made.where, reference)) if row.needs_reference else made


def preference_loss(row: Preference) -> Loss:
    """The loss of a method of direct alignment."""
    cells = {"loss": row.loss, "implicit reward": row.implicit}
    if row.point is None:
        return _loss(row.loss, row.unit, cells, row.paper)
    point, definitions = expression(row.point)
    where = (", ".join([f"{POINT} = {point}", *definitions]),)
    return _loss(row.loss, row.unit, {**cells, POINT: row.point}, row.paper, where)


def reward_loss(row: RewardObjective) -> Loss:
    """The loss of a reward model."""
    return _loss(row.loss, row.kind, {"loss": row.loss}, row.paper)


def settings(cell: Cell) -> list[str]:
    """The options of a loss with the letters that its formula has for them."""
    return [f"{LETTERS.get(key, key)} = {written(value)}" for key, value in options(cell).items()]


def _loss(cell: Cell, unit: str, cells: dict[str, Cell], paper: str, where: tuple[str, ...] = ()) -> Loss:
    inner, definitions = expression(cell)
    described = {kind: f"{name(part)}: {formula(part)}" for kind, part in cells.items()}
    return Loss(
        line=f"loss = Σ [ {inner} ] / {UNITS[unit]}",
        critic="",
        where=(*definitions, *where, *settings(cell)),
        cells={**described, "paper": paper_name(paper)},
    )


def written(value: float | bool) -> str:
    """An option's value as a recipe has it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
