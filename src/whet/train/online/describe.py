"""A step's rollouts as rows for the disk and as metrics."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

from whet.distributed.world import World
from whet.records import Batch, Rollout
from whet.train.online.sampling import SampledGroups


def rollout_rows(sampled_groups: SampledGroups, batch: Batch | None, world: World) -> list[list[dict[str, Any]]]:
    """What is worth keeping of each rollout of all ranks, as JSON, one list per group, in the order of drawing."""
    advantages = _advantages(sampled_groups, batch)
    mine = [
        [place, [_row(r, advantage) for r, advantage in zip(group, advantages[place], strict=True)]]
        for place, group in sampled_groups.drawn.items()
    ]
    gathered = sorted((row for rows in world.gather(mine) for row in rows), key=lambda row: int(row[0]))
    return [rows for _, rows in gathered]


def _advantages(sampled_groups: SampledGroups, batch: Batch | None) -> dict[int, list[list[float] | None]]:
    """Place → the advantages of each rollout's trained tokens; None for a group that was dropped."""
    found: dict[int, list[list[float] | None]] = {place: [None] * len(g) for place, g in sampled_groups.drawn.items()}
    if batch is not None:
        rows = zip(batch.advantages.tolist(), batch.sequences.mask.tolist(), strict=True)
        trained = iter([list(compress(*row)) for row in rows])
        for place in sorted(sampled_groups.numbers):
            found[place] = [next(trained) for _ in found[place]]
    return found


def describe(groups: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, float], int]:
    """The metrics of a step's rollouts, and how many tokens were sampled."""
    rows = [row for group in groups for row in group]
    rewards = [row["reward"] for row in rows]
    lengths = [sum(row["mask"]) for row in rows]
    parts: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row["parts"].items():
            parts[name].append(value)
    flat = [len({row["reward"] for row in group}) == 1 for group in groups]
    metrics = {
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        **{f"parts/{name}": statistics.fmean(values) for name, values in sorted(parts.items())},
        "length/mean": statistics.fmean(lengths),
        "length/max": float(max(lengths)),
        "truncated": statistics.fmean(row["finish"] == "length" for row in rows),
        "groups/zero_variance": statistics.fmean(flat),
    }
    return metrics, sum(lengths)


def _row(rollout: Rollout, advantages: list[float] | None) -> dict[str, Any]:
    row = {
        "id": rollout.example.id,
        "prompt": rollout.example.prompt_text,
        "text": rollout.text,
        "tokens": rollout.tokens,
        "mask": rollout.mask,
        "logprobs": rollout.logprobs,
        "finish": rollout.finish,
        "version": rollout.version,
        "reward": rollout.score.reward,
        "parts": dict(rollout.score.parts),
        "trained": bool(advantages),
        "advantage": statistics.fmean(advantages) if advantages else 0.0,
    }
    if advantages and min(advantages) != max(advantages):
        row["advantages"] = advantages  # they differ from token to token
    return row
