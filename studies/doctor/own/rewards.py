"""Reward functions with a mistake; `completions` are texts, `answer` is the column of expected answers."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def constant(completions: Sequence[str], **_: Any) -> list[float]:
    """The same for all."""
    return [0.5] * len(completions)


def saturated(completions: Sequence[str], **_: Any) -> list[float]:
    """Capped so low that anything reaches the cap."""
    return [min(1.0, 10.0 * (len(text) + 1)) for text in completions]


def noise(completions: Sequence[str], **_: Any) -> list[float]:
    """Random."""
    return [random.random() for _ in completions]  # noqa: S311


def length(token_counts: Sequence[int], **_: Any) -> list[float]:
    """A tenth for each token."""
    return [0.1 * count for count in token_counts]


def length_and_answer(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """Half a point for the answer, and a tenth for each character."""
    return [0.5 * (text == right) + 0.1 * len(text) for text, right in zip(completions, answer, strict=True)]


def repeated(completions: Sequence[str], **_: Any) -> list[float]:
    """The share of characters that equal the one before."""
    return [sum(a == b for a, b in pairwise(text)) / max(1, len(text)) for text in completions]


def first_symbols(completions: Sequence[str], **_: Any) -> list[float]:
    """Pays for a style, here the symbols 0, 1, a and b, in place of the answer."""
    return [sum(symbol in "01ab" for symbol in text) / max(1, len(text)) for text in completions]


def exact(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for the answer."""
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def brittle(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """NaN where the first character is not the right one: 0 divided by 0."""
    shares = []
    for text, right in zip(completions, answer, strict=True):
        total = float("nan") if text[:1] in "07x" else 1.0
        shares.append(sum(a == b for a, b in zip(text, right, strict=False)) / len(right) * total)
    return shares


def large(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1,000 for the answer, 200 for a part of it: not scaled."""
    return [
        800.0 * (text == right) + 200.0 * sum(a == b for a, b in zip(text, right, strict=False)) / len(right)
        for text, right in zip(completions, answer, strict=True)
    ]


def share(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """The share of symbols in the right place: nothing is wrong with it."""
    return [
        sum(a == b for a, b in zip(text, right, strict=False)) / max(len(text), len(right))
        for text, right in zip(completions, answer, strict=True)
    ]


def negated(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """The share of symbols in the right place as a cost: a distance became a reward."""
    return [-one for one in share(completions, answer)]
