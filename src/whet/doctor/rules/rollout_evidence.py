"""Rollouts that show a symptom: where they stand on disk, and how they begin."""

from __future__ import annotations

from collections.abc import Callable

from whet.doctor.findings import Evidence
from whet.doctor.history import History, Row

EXCERPT = 60  # characters of a completion that are shown


def shown(history: History, what: str, is_one: Callable[[Row], bool]) -> tuple[Evidence, ...]:
    """The first rollout of the newest step that has one such; none without."""
    for step in sorted(history.rollouts, reverse=True):
        for place, row in enumerate(history.rollouts[step]):
            if is_one(row):
                return (evidence_of(what, step, place, row),)
    return ()


def largest(history: History, what: str, size: Callable[[Row], float | None]) -> tuple[Evidence, ...]:
    """The rollout of the newest step for which a number is the largest; rows without the number do not count."""
    for step in sorted(history.rollouts, reverse=True):
        sized = [(size(row), place) for place, row in enumerate(history.rollouts[step])]
        known = [(value, place) for value, place in sized if value is not None]
        if known:
            place = max(known, key=lambda one: one[0])[1]
            return (evidence_of(what, step, place, history.rollouts[step][place]),)
    return ()


def evidence_of(what: str, step: int, place: int, row: Row) -> Evidence:
    text = str(row.get("text", ""))
    cut = text[:EXCERPT] + "…" * (len(text) > EXCERPT)
    return Evidence(text=f"{what}: {cut!r}", rollout=(step, place))


def length(row: Row) -> float | None:
    """Sampled tokens."""
    return float(sum(row["mask"])) if row.get("mask") else None


def reward(row: Row) -> float | None:
    value = row.get("reward")
    return None if value is None else float(value)
