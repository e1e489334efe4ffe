"""Rejection sampling: which completions are kept by reward: best-of-N per prompt or overall, at random, or in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
else:
    from whet.late_torch import torch

Place = tuple[int, int]  # prompt, completion
Allowed = Sequence[Sequence[bool]]  # of each completion of each prompt


def best(rewards: Sequence[Sequence[float]]) -> list[Place]:
    """Of every prompt the completion with the highest reward; of equals the first."""
    return [(row, max(range(len(group)), key=lambda i: (group[i], -i))) for row, group in enumerate(rewards)]


def at_random(rewards: Sequence[Sequence[float]], *, seed: int) -> list[Place]:
    """Of every prompt one completion, whatever its reward."""
    generator = torch.Generator().manual_seed(seed)
    return [(row, int(torch.randint(len(group), (), generator=generator))) for row, group in enumerate(rewards)]


def best_overall(rewards: Sequence[Sequence[float]], *, share: float) -> list[Place]:
    """The share of all completions with the highest rewards, in the order of the prompts; at least one."""
    places = _places(rewards)
    kept = sorted(places, key=lambda place: (-rewards[place[0]][place[1]], place))[: _count(places, share)]
    return sorted(kept)


def random_overall(rewards: Sequence[Sequence[float]], *, share: float, seed: int) -> list[Place]:
    """A share of all completions, whatever their rewards; at least one."""
    places = _places(rewards)
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(places[index] for index in order[: _count(places, share)])


def neighbours(
    rewards: Sequence[Sequence[float]], *, gap: float, may_win: Allowed | None = None
) -> list[tuple[Place, Place]]:
    """The first and second, third and fourth, … completion of a prompt, the better one first; ties make no pair.

    Where the better one may not win, there is no pair either.
    """
    pairs = [((row, i), (row, i + 1)) for row, group in enumerate(rewards) for i in range(0, len(group) - 1, 2)]
    ordered = _ordered(pairs, rewards, gap)
    return [pair for pair in ordered if may_win is None or may_win[pair[0][0]][pair[0][1]]]


def extremes(
    rewards: Sequence[Sequence[float]], *, gap: float, may_win: Allowed | None = None
) -> list[tuple[Place, Place]]:
    """The best completion of each prompt that may win, and the worst of all; ties make no pair."""
    pairs = []
    for row, group in enumerate(rewards):
        winners = [i for i in range(len(group)) if may_win is None or may_win[row][i]]
        if winners:
            best = max(winners, key=lambda i: group[i])
            worst = min(range(len(group)), key=lambda i: group[i])
            pairs.append(((row, best), (row, worst)))
    return _ordered(pairs, rewards, gap)  # a winner is never below the worst of all, so none changes places


def _ordered(
    pairs: Sequence[tuple[Place, Place]], rewards: Sequence[Sequence[float]], gap: float
) -> list[tuple[Place, Place]]:
    found = []
    for first, second in pairs:
        difference = rewards[first[0]][first[1]] - rewards[second[0]][second[1]]
        if difference != 0 and abs(difference) >= gap:
            found.append((first, second) if difference > 0 else (second, first))
    return found


def _places(rewards: Sequence[Sequence[float]]) -> list[Place]:
    return [(row, i) for row, group in enumerate(rewards) for i in range(len(group))]


def _count(places: Sequence[Place], share: float) -> int:
    return max(1, round(share * len(places)))
