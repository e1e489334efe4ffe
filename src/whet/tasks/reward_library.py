"""Reward functions for `reward.functions`, to be summed with the reward of an answer. They read text alone.

Two can be named as they are, `whet.tasks.reward_library:think_answer_format` and `…:think_answer_tags`. The others are
made in a file of the user's, e.g. `boxed = matching(r".*\\boxed\\{[^{}]+\\}\\s*")`, and named `rewards.py:boxed`.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from whet.errors import UserError

Rewards = Callable[..., list[float]]
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
THINK_ANSWER = re.compile(r"\s*<think>(.*)</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)


def think_answer_format(completions: Sequence[Any], **_: object) -> list[float]:
    """1 for `<think>…</think> <answer>…</answer>` and nothing else, each tag once and neither part blank; else 0."""
    return [float(_is_think_answer(text)) for text in map(_text, completions)]


def think_answer_tags(completions: Sequence[Any], **_: object) -> list[float]:
    """A quarter for each of the four tags that occurs exactly once and after the tags before it in that order."""
    return [_ordered_tags(text) / len(TAGS) for text in map(_text, completions)]


def matching(pattern: str) -> Rewards:
    """A function that gives 1 if the whole completion matches the pattern, in which a dot is any character, else 0."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise UserError(f"matching({pattern!r}): this is no regular expression: {error}") from error

    def matches(completions: Sequence[Any], **_: object) -> list[float]:
        return [float(compiled.fullmatch(text) is not None) for text in map(_text, completions)]

    return matches


def length_between(shortest: int, longest: int) -> Rewards:
    """A function that gives 1 if a completion has from `shortest` to `longest` tokens, both included, else 0."""
    if not 0 <= shortest <= longest:
        raise UserError(f"length_between({shortest}, {longest}): the first must be at least 0 and at most the second")

    def is_within(token_counts: Sequence[int], **_: object) -> list[float]:
        return [float(shortest <= count <= longest) for count in token_counts]

    return is_within


def repetition(n: int = 20) -> Rewards:
    """A function that gives −`repeated_share` of the completion's n-grams of characters, so for any language."""
    if n < 1:
        raise UserError(f"repetition({n}): an n-gram has at least one character")

    def repeated(completions: Sequence[Any], **_: object) -> list[float]:
        return [0.0 - repeated_share(text, n) for text in map(_text, completions)]

    return repeated


def repeated_share(items: Sequence[Hashable], n: int) -> float:
    """1 − distinct n-grams / n-grams: 0 if all differ or there is none, towards 1 if few are repeated all over.

    The share of n-grams that occurred before, after the repetition penalty of Yeo et al. 2025 (2502.03373).
    """
    total = len(items) - n + 1
    if total < 2:
        return 0.0
    return 1.0 - len(set(zip(*(items[start:] for start in range(n)), strict=False))) / total


def _text(completion: Any) -> str:
    """The text of a completion, which is a list of one message where the prompt is a conversation."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _is_think_answer(text: str) -> bool:
    found = THINK_ANSWER.fullmatch(text)
    is_once = all(text.count(tag) == 1 for tag in TAGS)
    return found is not None and is_once and all(part.strip() for part in found.groups())


def _ordered_tags(text: str) -> int:
    """How many tags occur once, in order."""
    found, end = 0, 0
    for tag in TAGS:
        place = text.find(tag)
        if text.count(tag) == 1 and place >= end:
            found, end = found + 1, place + len(tag)
    return found
