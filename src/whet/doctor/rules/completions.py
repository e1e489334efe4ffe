"""Rules on what is sampled: truncation, missing stop tokens, repetition; and on prompts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from whet.doctor import thresholds as at
from whet.doctor.findings import Evidence, Finding
from whet.doctor.history import FEW, SURE, History, Row, last_steps, moved, now, start
from whet.doctor.rules.levels import level_of, newest
from whet.number_format import percent

PROMPTS = 4  # different prompts that must begin alike before their beginning counts as a template's


def truncation(history: History) -> Finding | None:
    """Completions that reached rollout.max_tokens; with a reward for every token they are meant to."""
    share = history.series("truncated")
    if not len(share) or len(history.series("tokens/match")):
        return None
    current = now(share)
    sentence = f"{percent(current)} of completions in {last_steps(share)} were truncated"
    level = level_of(current, at.TRUNCATED)
    if level == "ok":
        return Finding(rule="truncation", level=level, sentence=sentence)
    if history.has_gained or history.is_solved or len(share) < 2 * FEW:
        level = "note"
    return Finding(
        rule="truncation",
        level=level,
        sentence=sentence + ": raise rollout.max_tokens or reward shorter answers",
        causes=_of_truncation(history),
        evidence=(newest(share, "truncated"),),
    )


def _of_truncation(history: History) -> tuple[str, ...]:
    """Too little room, or a policy that never ends: by the length of the expected answers, if they are known."""
    needed = _answer_tokens(history)
    length = history.series("length/mean")
    if needed is not None and needed > history.settings.number("rollout.max_tokens"):
        return ("max-tokens-too-small", "no-stop-token")
    share = history.series("truncated")
    if len(length) and now(length) > start(length) * 1.2 and start(share) < at.TRUNCATED[1]:
        return ("reward-pays-length", "max-tokens-too-small", "no-stop-token")
    if min(share.values) > 0.98:
        return ("no-stop-token", "max-tokens-too-small", "template")
    return ("max-tokens-too-small", "no-stop-token", "learning-rate-too-high")


def _answer_tokens(history: History) -> float | None:
    """Median number of tokens of the expected answers, by the characters that a token of the rollouts has."""
    answers = [str(row["answer"]) for rows in history.answers.values() for row in rows if row.get("answer")]
    rows = [row for row in history.every_rollout if row.get("text")]
    characters, tokens = sum(len(row["text"]) for row in rows), sum(sum(row["mask"]) for row in rows)
    if not answers or not tokens or not characters:
        return None
    lengths = sorted(len(answer) for answer in answers)
    return lengths[len(lengths) // 2] * tokens / characters + 1


def repetition(history: History) -> Finding | None:
    """Degenerate text: completions that repeat themselves, more than at the start."""
    curve = history.series("rollouts/repeated_4grams")
    if len(curve) < 4 * FEW or now(curve) < at.REPEATED[0] or history.has_gained:
        return None
    grown = now(curve) > start(curve) + 0.1 and moved(curve) > SURE
    return Finding(
        rule="repetition",
        level="warning" if now(curve) >= at.REPEATED[1] and grown else "note",
        sentence=f"{percent(now(curve))} of the 4-grams of a completion repeat an earlier one in {last_steps(curve)}",
        causes=("reward-pays-repetition", "reward-pays-length", "learning-rate-too-high") if grown else (),
        evidence=(newest(curve, "rollouts/repeated_4grams"), *_most_repeated(history)),
    )


def _most_repeated(history: History) -> tuple[Evidence, ...]:
    """The longest of the newest rollouts."""
    for step in sorted(history.rollouts, reverse=True):
        lengths = [sum(row["mask"]) for row in history.rollouts[step]]
        if lengths:
            return (Evidence(text="one of the longest rollouts", rollout=(step, lengths.index(max(lengths)))),)
    return ()


def double_start(history: History) -> Finding | None:
    """All prompts begin with the same token twice: two beginning-of-sequence tokens, by the template and again."""
    prompts = {row["prompt"]: _prompt_tokens(row) for row in history.every_rollout if "prompt" in row}
    texts = {text[:1] for text in prompts}
    starts = [tokens[:2] for tokens in prompts.values()]
    if len(prompts) < PROMPTS or any(len(pair) < 2 or pair[0] != pair[1] or pair != starts[0] for pair in starts):
        return None
    if len(texts) == 1 and len({text[:2] for text in prompts}) == 1 and _begins_twice(next(iter(prompts))):
        return None  # the text itself begins with one character twice
    step = min(history.rollouts)
    return Finding(
        rule="double-start-token",
        level="warning",
        sentence=f"all {len(prompts)} prompts that were looked at begin with the token {starts[0][0]} twice",
        causes=("template",),
        evidence=(Evidence(text="a prompt that begins with the same token twice", rollout=(step, 0)),),
    )


def _prompt_tokens(row: Row) -> Sequence[int]:
    return list(compress(row["tokens"], (not chosen for chosen in row["mask"])))


def _begins_twice(text: str) -> bool:
    return len(text) > 1 and text[0] == text[1]


COMPLETIONS = (truncation, repetition, double_start)
