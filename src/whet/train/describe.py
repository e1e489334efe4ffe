"""A step's rollouts as rows for the disk and as metrics."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from whet.models.protocol import Tokenizer
from whet.records import Batch, Rollout
from whet.rollout import Group


def rollout_rows(groups: Sequence[Group], batch: Batch, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """What is worth keeping of each rollout, as JSON, one list per group."""
    last = batch.sequences.lengths - 1
    advantages = iter(batch.advantages.gather(1, last[:, None])[:, 0].tolist())
    chosen = {token for group in groups for r in group for token, m in zip(r.tokens, r.mask, strict=True) if m}
    pieces = {token: tokenizer.decode([token]) for token in chosen}
    return [[_row(rollout, next(advantages), pieces) for rollout in group] for group in groups]


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


def _row(rollout: Rollout, advantage: float, pieces: Mapping[int, str]) -> dict[str, Any]:
    return {
        "id": rollout.example.id,
        "prompt": rollout.example.prompt_text,
        "text": rollout.text,
        "pieces": [pieces[token] for token, chosen in zip(rollout.tokens, rollout.mask, strict=True) if chosen],
        "tokens": list(rollout.tokens),
        "mask": list(rollout.mask),
        "logprobs": list(rollout.logprobs),
        "finish": rollout.finish,
        "version": rollout.version,
        "reward": rollout.score.reward,
        "parts": dict(rollout.score.parts),
        "advantage": advantage,
    }
