"""Samples on the page: held-out answers before and after training, and rollouts token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from whet.report.numbers import number

Row = Mapping[str, Any]

CHANGED, SAME = 40, 20  # examples that are shown, of those whose mark changed and of the others
GROUPS, ROLLOUTS = 2, 8  # groups that are shown, and rollouts of each
HEAT = 6  # shades; the last one means a log-prob of -3 (5 %) or less
COLDEST = -3.0


def before_after(first: Sequence[Row], last: Sequence[Row]) -> tuple[str, list[tuple[Row, Row]]]:
    """What two evaluations come to in a sentence, and greedy answers of both to the same examples."""
    before = {row["id"]: row for row in first if row["sample"] == 0}
    pairs = [(before[row["id"]], row) for row in last if row["sample"] == 0 and row["id"] in before]
    changed = [pair for pair in pairs if pair[0]["correct"] != pair[1]["correct"]]
    same = [pair for pair in pairs if pair[0]["correct"] == pair[1]["correct"]]
    shown = {pair[1]["id"] for pair in changed[:CHANGED] + same[:SAME]}
    learned = sum(after["correct"] for _, after in changed)
    count = f"{len(shown)} of {len(pairs)}" if len(shown) < len(pairs) else f"{len(pairs)}"
    lead = (
        f"{count} held-out examples, answered greedily. {learned} became right, {len(changed) - learned} became wrong."
    )
    return lead, [pair for pair in pairs if pair[1]["id"] in shown]


def rollout_groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A few groups of one step: reward, its parts, advantage, and every token shaded by its log-prob."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["id"])]
    # A group whose rewards differ shows more; sorted() is stable, so the order is kept otherwise.
    groups = sorted(groups, key=lambda group: len({row["reward"] for row in group}) == 1)[:GROUPS]
    return [_group(group) for group in groups]


def heat(logprob: float) -> int:
    """The shade of a token: 0 for certain, `HEAT` for COLDEST or less."""
    return round(HEAT * min(1.0, logprob / COLDEST)) if logprob < 0 else 0


def _group(group: Sequence[Row]) -> dict[str, Any]:
    mean = sum(row["reward"] for row in group) / len(group)
    more = f", {ROLLOUTS} shown" if len(group) > ROLLOUTS else ""
    return {
        "about": f"{len(group)} rollouts, mean reward {number(mean)}{more}",
        "parts": list(dict.fromkeys(name for row in group for name in row["parts"])),
        "rows": [_rollout(row) for row in group[:ROLLOUTS]],
    }


def _rollout(row: Row) -> dict[str, Any]:
    chosen = zip(row["tokens"], row["mask"], row["logprobs"], strict=True)
    shades = [
        {"id": token, "heat": heat(logprob), "label": _label(logprob)} for token, picked, logprob in chosen if picked
    ]
    return {**row, "shades": shades, "pieces": _pieces(row, len(shades))}


def _pieces(row: Row, count: int) -> Sequence[str] | None:
    """The text of each token: as recorded, or by characters where the numbers match; "" is a special token."""
    if "pieces" in row:
        return list(row["pieces"])
    ended = 1 if row["finish"] == "stop" else 0
    return [*row["text"], *[""] * ended] if len(row["text"]) + ended == count else None


def _label(logprob: float) -> str:
    return f"log-prob {logprob:.3f} ({100 * math.exp(min(0.0, logprob)):.1f} %)".replace("-0.000", "0.000")
