"""Packaged reward functions: scores by hand, and what hostile completions get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.tasks.reward_library import (
    length_between,
    matching,
    repeated_share,
    repetition,
    think_answer_format,
    think_answer_tags,
)

GOOD = "<think>2 and 2</think><answer>4</answer>"
HOSTILE: list[tuple[str, float, float]] = [  # completion, format, tags
    (GOOD, 1.0, 1.0),
    ("<think>2 and 2</think>\n\n<answer>4</answer>\n", 1.0, 1.0),
    ("  <think>\na\n</think> <answer>\nb\n</answer>  ", 1.0, 1.0),
    ("", 0.0, 0.0),
    ("4", 0.0, 0.0),
    ("<answer>4</answer>", 0.0, 0.5),
    ("<think>2 and 2</think>", 0.0, 0.5),
    ("<think>2 and 2</think>4", 0.0, 0.5),
    ("<think></think><answer>4</answer>", 0.0, 1.0),
    ("<think>a</think><answer></answer>", 0.0, 1.0),
    ("<think> \n </think><answer>4</answer>", 0.0, 1.0),
    ("<think>a</think><answer>\t</answer>", 0.0, 1.0),
    ("<think></think><answer></answer>", 0.0, 1.0),
    (GOOD * 2, 0.0, 0.0),
    (GOOD * 100, 0.0, 0.0),
    (GOOD + " and more", 0.0, 1.0),
    ("so: " + GOOD, 0.0, 1.0),
    ("<think>a</think> then <answer>4</answer>", 0.0, 1.0),
    ("<answer>4</answer><think>a</think>", 0.0, 0.5),
    ("</think>a<think></answer>4<answer>", 0.0, 0.5),
    ("<think>a<think>b</think><answer>4</answer>", 0.0, 0.75),
    ("<think>a</think></think><answer>4</answer>", 0.0, 0.75),
    ("<think>a</think><answer>4</answer><answer>5</answer>", 0.0, 0.5),
    ("<think>a</think><answer>4<answer>5</answer></answer>", 0.0, 0.5),
    ("<think>a</think><answer>4</answer></answer>", 0.0, 0.75),
    ("<think>a <answer>3</answer></think><answer>4</answer>", 0.0, 0.5),
    ("<think>a<answer>4</answer></think>", 0.0, 0.5),
    ("<think>a<answer>4</think></answer>", 0.0, 0.75),
    ("<THINK>a</THINK><ANSWER>4</ANSWER>", 0.0, 0.0),
    ("<think >a</think><answer>4</answer>", 0.0, 0.75),
    ("< think>a</think><answer>4</answer>", 0.0, 0.75),
    ("<think>a</think><answer>4", 0.0, 0.75),
    ("<think>a<answer>4</answer>", 0.0, 0.75),
    ("a</think><answer>4</answer>", 0.0, 0.75),
    ("<think>a</think>4</answer>", 0.0, 0.75),
    ("&lt;think&gt;a&lt;/think&gt;&lt;answer&gt;4&lt;/answer&gt;", 0.0, 0.0),
    ("<thinking>a</thinking><answer>4</answer>", 0.0, 0.5),
    ("<think>a</think><Answer>4</Answer>", 0.0, 0.5),
    ("<\u200bthink>a</think><answer>4</answer>", 0.0, 0.75),
    ("＜think＞a＜/think＞＜answer＞4＜/answer＞", 0.0, 0.0),
    ("<think><think></think></think><answer><answer></answer></answer>", 0.0, 0.0),
    ("<think><answer></think></answer>", 0.0, 0.75),
    ("<think>" * 1000, 0.0, 0.0),
    ("<think></think><answer>" + " " * 10_000 + "</answer>", 0.0, 1.0),
    ("<think>" + "a" * 100_000 + "</think><answer>4</answer>", 1.0, 1.0),
    ("\x00<think>a</think><answer>4</answer>", 0.0, 1.0),
    ("<think>a</think>\u00a0<answer>4</answer>", 1.0, 1.0),  # a no-break space is white space
]


@pytest.mark.parametrize(("text", "formatted", "tagged"), HOSTILE, ids=lambda value: repr(value)[:40])
def test_think_and_answer(text: str, formatted: float, tagged: float) -> None:
    for completions in ([text], [[{"role": "assistant", "content": text}]]):
        assert think_answer_format(completions, answer=["4"]) == [formatted]
        assert think_answer_tags(completions=completions) == [tagged]


@given(st.text(), st.text())
def test_only_one_place_counts(before: str, after: str) -> None:
    """Text around the tags never scores, unless it is white space."""
    expected = float(not before.strip() and not after.strip())
    assert think_answer_format([before + GOOD + after]) == [expected]


def test_a_pattern_matches_the_whole_completion() -> None:
    boxed = matching(r".*\\boxed\{[^{}]+\}\s*")
    assert boxed([r"so \boxed{4}", r"\boxed{4} or 5", "two\nlines \\boxed{x}\n", r"\boxed{}", ""]) == [1, 0, 1, 0, 0]
    with pytest.raises(UserError, match="this is no regular expression"):
        matching("(")


def test_a_length_is_within_both_ends() -> None:
    assert length_between(2, 4)(token_counts=[1, 2, 4, 5], completions=[]) == [0.0, 1.0, 1.0, 0.0]
    for wrong in ((-1, 2), (3, 2)):
        with pytest.raises(UserError, match="length_between"):
            length_between(*wrong)


@pytest.mark.parametrize(
    ("items", "n", "share"),
    [
        ("", 2, 0.0),
        ("a", 2, 0.0),
        ("ab", 2, 0.0),
        ("aaa", 2, 0.5),  # aa aa
        ("abab", 2, 1 / 3),  # ab ba ab
        ("abcabc", 3, 0.25),  # abc bca cab abc
        ("abcd", 1, 0.0),
        ("aabb", 1, 0.5),
        ([1, 2, 3, 1, 2, 3, 1, 2], 3, 0.5),  # 123 231 312 123 231 312
        ([12, 3], 1, 0.0),
        ([1, 23, 12, 3], 2, 0.0),  # digits run together would repeat
    ],
)
def test_the_share_of_repeated_ngrams(items: Sequence[object], n: int, share: float) -> None:
    assert repeated_share(items, n) == pytest.approx(share)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_the_share_counts_ngrams_that_came_before(items: list[int], n: int) -> None:
    grams = [items[i : i + n] for i in range(len(items) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    share = repeated_share(items, n)
    assert share == pytest.approx(again / len(grams) if grams else 0.0)
    assert 0.0 <= share < 1.0


def test_repetition_is_paid_for_by_characters() -> None:
    assert repetition(2)(["aaa", "ab"]) == [-0.5, 0.0]
    assert repetition()(["x" * 19, "数" * 40]) == [0.0, pytest.approx(-20 / 21)]
    with pytest.raises(UserError, match="at least one character"):
        repetition(0)
