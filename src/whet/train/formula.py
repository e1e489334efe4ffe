"""A loss as one line of mathematics, put together from the formulas of the table's cells.

The first sentence of a cell's docstring is its formula: an expression, then definitions after commas, then a remark
after a colon. The citation follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from whet.algorithms.cells import Cell, formula, name, options, terms
from whet.algorithms.table import Algorithm, Objective, describe

KL_DIFFERENCE = "d = log π − log π_ref"  # the letter of the KL estimators


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """What is minimised."""

    line: str  # the whole loss
    where: tuple[str, ...]  # what its letters stand for
    cells: Mapping[str, str]  # cell → its name and formula


def policy_loss(algorithm: Algorithm, *, max_tokens: int) -> Loss:
    """The loss of a policy-gradient method."""
    inner, where = expression(algorithm.surrogate)
    advantage, definitions = expression(algorithm.advantage)
    penalty, _ = expression(algorithm.kl)
    if algorithm.kl_in_loss:
        inner += f" + {algorithm.kl_in_loss:g}·({penalty})"
    where += [*_settings(algorithm.surrogate), ", ".join([advantage, *definitions]), *_settings(algorithm.advantage)]
    if algorithm.kl_in_reward:
        where.append(f"R_i = score_i − {algorithm.kl_in_reward:g}·Σ_t ({penalty})")
    if algorithm.kl_coefficient:
        where.append(KL_DIFFERENCE)
    if "max_tokens" in terms(algorithm.weighting):
        where.append(f"max_tokens = {max_tokens}")
    return Loss(line=_weighed(algorithm.weighting, inner), where=tuple(where), cells=describe(algorithm))


def supervised_loss(objective: Objective) -> Loss:
    """The loss of a supervised method."""
    inner, where = expression(objective.loss)
    cells = {"loss": objective.loss, "weighting": objective.weighting}
    described = {kind: f"{name(cell)}: {formula(cell)}" for kind, cell in cells.items()}
    return Loss(
        line=_weighed(objective.weighting, inner), where=tuple(where), cells={**described, "paper": objective.paper}
    )


def expression(cell: Cell) -> tuple[str, list[str]]:
    """The formula of a cell without remark and citation, and the definitions that follow it after commas."""
    sentence = re.split(r"[.:](?:\s|$)", formula(cell), maxsplit=1)[0]
    depth, parts = 0, [""]
    for character in sentence:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    first, *definitions = (part.strip() for part in parts)
    return first, definitions


def _weighed(weighting: Cell, inner: str) -> str:
    """`Σ / count` around a loss per token: Σ [ … ] / count."""
    sums, _, count = expression(weighting)[0].rpartition(" / ")
    return f"loss = {sums} [ {inner} ] / {count}"


def _settings(cell: Cell) -> list[str]:
    return [f"{key} = {value:g}" for key, value in options(cell).items()]
