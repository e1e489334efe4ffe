"""Metrics of a step's rollouts, from the rows that also go to the disk."""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import compress
from typing import Any

from whet.config import RewardConfig
from whet.evaluate.statistics import rank_correlation
from whet.tasks.reward_library import repeated_share
from whet.train.session.callbacks import Progress
from whet.train.setup.reward_grader import part_weights

FIRST_STEPS = 3  # in which equal rewards are told at once
NGRAM = 4  # tokens of the n-grams that are counted as repeated
CORRECT = "correct"  # the part of a score that says whether a completion is right

Row = Mapping[str, Any]
Groups = Sequence[Sequence[Row]]


def warn_of_equal_rewards(described: Mapping[str, float], step: int, progress: Progress) -> None:
    """Says at once, in the first steps, that no rollout was better than another; the report tells of later steps."""
    if step <= FIRST_STEPS and described.get("reward/std") == 0:
        progress.note(
            f"warning: step {step}: all rewards are {described['reward/mean']:g}, so no rollout is better than another "
            "and nothing can be learned from them"
        )


def describe(groups: Groups, reward: RewardConfig | None = None) -> tuple[dict[str, float], int]:
    """Metrics of a step's rollouts, and the number of sampled tokens; `reward` says how parts are weighted."""
    rows = [row for group in groups for row in group]
    lengths = [sum(row["mask"]) for row in rows]
    metrics = {
        **_rewards(rows),
        **_means("parts", (row["parts"] for row in rows)),
        **_means("logged", (row.get("logged", {}) for row in rows)),
        **({} if reward is None else _shares(rows, part_weights(reward))),
        **_correct(rows),
        **_lengths(rows, lengths),
        "truncated": statistics.fmean(row["finish"] == "length" for row in rows),
        **_group_kinds(groups),
        **_repetition(groups),
        **_contradictions(groups),
        **_matches(rows),
        **_turns(rows),
        **_by_task(rows),
    }
    return metrics, sum(lengths)


def _rewards(rows: Sequence[Row]) -> dict[str, float]:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    if not rewards:
        return {}
    return {
        "reward/mean": statistics.fmean(rewards),
        "reward/std": statistics.pstdev(rewards),
        "reward/min": float(min(rewards)),
        "reward/max": float(max(rewards)),
    }


def _means(kind: str, found: Any) -> dict[str, float]:
    """The mean of each number by name, over the rows that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for numbers in found:
        for name, value in numbers.items():
            values[name].append(value)
    return {f"{kind}/{name}": statistics.fmean(some) for name, some in sorted(values.items())}


def _shares(rows: Sequence[Row], weights: Mapping[str, float]) -> dict[str, float]:
    """cov(w·part, reward) / var(reward) of each weighted part: the shares of the reward's variance, which add up to 1.

    Only of a reward of several parts. A part that was not given to a row added nothing to its reward.
    """
    given = [row for row in rows if row["reward"] is not None]
    rewards = [row["reward"] for row in given]
    variance = statistics.pvariance(rewards) if given else 0.0
    if len(weights) < 2 or not variance:
        return {}
    mean = statistics.fmean(rewards)
    found = {}
    for name, weight in sorted(weights.items()):
        products = (weight * row["parts"].get(name, 0.0) * (row["reward"] - mean) for row in given)
        found[f"reward/share/{name}"] = math.fsum(products) / len(given) / variance
    return found


def _is_correct(row: Row) -> bool | None:
    """Whether the score of a rollout says that it is right; None if it does not say."""
    return row["parts"][CORRECT] >= 1 if CORRECT in row["parts"] else None


def _correct(rows: Sequence[Row]) -> dict[str, float]:
    known = [is_right for is_right in map(_is_correct, rows) if is_right is not None]
    return {"correct": statistics.fmean(known)} if known else {}


def _lengths(rows: Sequence[Row], lengths: Sequence[int]) -> dict[str, float]:
    judged = [(length, row["reward"]) for row, length in zip(rows, lengths, strict=True) if row["reward"] is not None]
    correlation = rank_correlation([float(length) for length, _ in judged], [reward for _, reward in judged])
    return {
        "length/mean": statistics.fmean(lengths),
        "length/std": statistics.pstdev(lengths),
        "length/max": float(max(lengths)),
        **({} if correlation is None else {"length/reward_correlation": correlation}),
    }


def _group_kinds(groups: Groups) -> dict[str, float]:
    """Shares of the groups whose rewards are all equal, and of these by whether they are right; a single has none."""
    compared = [group for group in groups if len(group) > 1]
    rewards = [row["reward"] for group in groups for row in group if row["reward"] is not None]
    if not compared:
        return {}
    flat = [group for group in compared if len({row["reward"] for row in group} - {None}) == 1]
    right = sum(_is_right(group, min(rewards), max(rewards)) for group in flat)
    return {
        "groups/zero_variance": len(flat) / len(compared),
        "groups/all_right": right / len(compared),
        "groups/all_wrong": (len(flat) - right) / len(compared),
    }


def _is_right(group: Sequence[Row], lowest: float, highest: float) -> bool:
    """Whether a group of equal rewards is right rather than wrong.

    By its rollouts where it is known that they are; else by whether its reward is nearer to the highest of the step
    than to the lowest; where they are the same, by its sign.
    """
    judged = [row for row in group if row["reward"] is not None]
    known = [_is_correct(row) for row in judged]
    if None not in known:
        return sum(map(bool, known)) > len(known) / 2
    reward = float(judged[0]["reward"])
    return reward > 0 if lowest == highest else highest - reward < reward - lowest


def _repetition(groups: Groups) -> dict[str, float]:
    """Prompts drawn twice, completions sampled twice for one prompt, and n-grams written twice in a completion."""
    texts = [[tuple(compress(row["tokens"], row["mask"])) for row in group] for group in groups]
    count = sum(map(len, texts))
    prompts = [group[0]["prompt"] for group in groups if group]
    return {
        "prompts/duplicates": _again(prompts) / len(prompts),
        "rollouts/duplicates": sum(map(_again, texts)) / count,
        "rollouts/repeated_4grams": math.fsum(repeated_share(one, NGRAM) for group in texts for one in group) / count,
    }


def _contradictions(groups: Groups) -> dict[str, float]:
    """Of the completions that equal an earlier one of their prompt, the share with another reward; none equal: none."""
    again = contradicted = 0
    for group in groups:
        first: dict[tuple[int, ...], float] = {}
        for row in group:
            if row["reward"] is None:
                continue
            reward = first.setdefault(tuple(compress(row["tokens"], row["mask"])), row["reward"])
            contradicted += row["reward"] != reward
        again += sum(row["reward"] is not None for row in group) - len(first)
    return {"reward/contradictions": contradicted / again} if again else {}


def _again(items: Sequence[Hashable]) -> int:
    """How many items are equal to an earlier one."""
    return len(items) - len(set(items))


def _matches(rows: Sequence[Row]) -> dict[str, float]:
    """With token rewards: the share of all sampled tokens that equal the real ones."""
    compared = [
        (row["parts"]["match"], len(row["token_rewards"]))
        for row in rows
        if "match" in row["parts"] and "token_rewards" in row
    ]
    total = sum(count for _, count in compared)
    return {"tokens/match": math.fsum(share * count for share, count in compared) / total} if total else {}


def _turns(rows: Sequence[Row]) -> dict[str, float]:
    """Of conversations: how many turns they have."""
    counts = [len(row["turns"]) for row in rows if "turns" in row]
    return {"turns/mean": statistics.fmean(counts), "turns/max": float(max(counts))} if counts else {}


def _by_task(rows: Sequence[Row]) -> dict[str, float]:
    """Of a mixture, for each task: its share of the rollouts, their mean reward, and the share that is correct."""
    by_task: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if "part" in row:
            by_task[row["part"]].append(row)
    metrics = {}
    for name, some in sorted(by_task.items()):
        metrics[f"tasks/{name}/share"] = len(some) / len(rows)
        metrics[f"tasks/{name}/reward"] = statistics.fmean(row["reward"] for row in some)
        correct = [row["parts"][CORRECT] for row in some if CORRECT in row["parts"]]
        if correct:
            metrics[f"tasks/{name}/correct"] = statistics.fmean(correct)
    return metrics
