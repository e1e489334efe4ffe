"""How the procedural tasks mark an answer, and how they check their level.

    reward = 0.8 · correct + 0.2 · partial

`partial` is the share of characters that stand in their place, out of the longer of the two texts. It reaches 1 only
when both are equal, so nothing that is wrong earns as much as 0.2 and everything that is right earns exactly 1:
neither listing several answers nor writing more than was asked pays.
"""

from __future__ import annotations

from whet.errors import UserError
from whet.records import Score

CORRECT_WEIGHT = 0.8
PARTIAL_WEIGHT = 0.2


def mark(given: str, answer: str) -> Score:
    """The score of `given` where `answer` is the only right text."""
    correct = float(given == answer)
    partial = share_in_place(given, answer)
    reward = CORRECT_WEIGHT * correct + PARTIAL_WEIGHT * partial
    return Score(reward=reward, parts={"correct": correct, "partial": partial})


def share_in_place(given: str, answer: str) -> float:
    """Characters of `given` that equal the answer's at the same position, over the longer length; 0 for no text."""
    longest = max(len(given), len(answer))
    same = sum(a == b for a, b in zip(given, answer, strict=False))
    return same / longest if longest else 0.0


def require_level(task: str, level: int, highest: int) -> None:
    """Refuses a level outside 1 … highest."""
    if not 1 <= level <= highest:
        raise UserError(f"task {task}: level is {level}, must be between 1 and {highest}")
