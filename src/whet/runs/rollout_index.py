"""What is listed of every recorded rollout: enough to sort and filter by, without its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CORRECT = "correct"  # the part of a score that says whether a completion is right


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One rollout of a step; `group` and `number` count from 0 in the order of sampling."""

    step: int
    group: int  # of the rollouts of one prompt
    number: int  # in its group
    prompt_id: str
    reward: float | None  # None: the reward failed on it
    parts: Mapping[str, float] = field(default_factory=dict)
    correct: bool | None  # None: its score does not say
    length: int  # sampled tokens
    finish: str
    max_advantage: float | None  # the largest magnitude of a token's; None: it was not trained on
    kept: bool  # trained on


def summarise(step: int, group: int, number: int, row: Mapping[str, Any]) -> Summary:
    """The summary of a recorded row; what the row lacks, or has in a wrong form, is empty."""
    found = row.get("parts")
    parts = {str(name): value for name, value in found.items() if _is_number(value)} if isinstance(found, dict) else {}
    mask, finish = row.get("mask"), row.get("finish")
    kept = row.get("trained") is True
    reward = row.get("reward")
    return Summary(
        step=step,
        group=group,
        number=number,
        prompt_id=str(row.get("id", "")),
        reward=reward if _is_number(reward) else None,
        parts=parts,
        correct=parts[CORRECT] >= 1 if CORRECT in parts else None,
        length=sum(one is True for one in mask) if isinstance(mask, list | tuple) else 0,
        finish=finish if isinstance(finish, str) else "",
        max_advantage=_largest(row) if kept else None,
        kept=kept,
    )


def _largest(row: Mapping[str, Any]) -> float | None:
    """The largest magnitude of an advantage: of all tokens where they differ, else of any."""
    found: Any = row.get("advantages")
    given = found if isinstance(found, list) else [row.get("advantage", 0.0)]
    return max((abs(one) for one in given if _is_number(one)), default=None)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -math.inf < value < math.inf
