"""Answers found in completions: what is right, what is not, and which settings are refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RunFailed, UserError
from whet.tasks import matching
from whet.tasks.matching import Matcher

RIGHT = [
    ("exact", " city\n", "city "),
    ("number", "42", "First 7, then the answer is 42."),
    ("number", "42", "42.0"),
    ("number", "1234.5", "It costs $1,234.50 in all"),
    ("number", "They sold 48+24 = 72 clips.\n#### 72", "so 72"),
    ("number", "-5", "x = −5"),
    ("number", "-5", "-$5"),
    ("number", "5", "10-5"),  # a minus between two terms is no sign
    ("number", "0.12", "12%"),
    ("number", "12 %", "0.12"),
    ("number", "12", "about 12 percent"),
    ("number", "3/4", "0.75"),
    ("number", "0.75", "\\frac{3}{4}"),
    ("number", "1.5", "1 1/2 cups"),
    ("number", "-1.5", "-1 1/2"),
    ("number", ".5", "0.5"),
    ("number", "1500", "1.5e3"),
    ("number", "3", "3 cm2"),  # a digit inside a word is no number
    ("boxed", "\\frac{1}{2}", "thus \\boxed{1} and \\boxed{\\dfrac{1}{2}}."),
    ("boxed", "0.5", "\\boxed{\\frac{1}{2}}"),
    ("boxed", "so \\boxed{x^{2}+1}", "\\boxed{ x^{2} + 1 }"),
    ("boxed", "(1, 2)", "\\boxed{\\left(1,2\\right)}"),
    ("boxed", "east", "\\boxed{\\text{east}}"),
    ("boxed", "1", "\\boxed{1} then \\boxed{2"),  # the last complete one
    ("choice", "B", "A is wrong, so the answer is (B)."),
    ("choice", "(b)", "**B**"),
    ("choice", "C. Paris", "Answer: C, I think"),
    ("choice", "A", "A"),
    ("choice", "A", "The answer is A because a cat is one"),
    ("choice", "B", "B. A person would know"),
    ("choice", "B", "b)"),
    ("choice", "B", "the answer is b"),
    ("choice", "A", "A is correct"),
    ("choice", "B", "The answer is B, not C"),  # what is said to be the answer, before other letters
    ("choice", "B", "Answer: B\n\nC is wrong"),
    ("number", "1000", "1\\,000 apples"),
    ("number", "-5", "x is –5"),
    ("number", "0.5", "\\frac12"),
    ("boxed", "\\frac{1}{2}x", "\\boxed{\\frac12x}"),
    ("boxed", "x^2", "\\boxed{x^{2}}"),
    ("boxed", "5", "\\boxed 5"),
    ("boxed", "5", "\\fbox{5}"),
]
WRONG = [
    ("exact", "city", "City"),
    ("exact", "", ""),
    ("number", "42", "42, no, 43"),
    ("number", "42", "forty-two"),
    ("number", "5", "1/0"),
    ("number", "12", "0.12"),
    ("number", "123", "1,23"),
    ("number", "1/3", "0.333"),
    ("number", "7", "7" * 5000),  # more digits than Python reads
    ("boxed", "2", "2"),
    ("boxed", "a", "\\boxed{b}"),
    ("choice", "A", "I think a cat is a good answer"),
    ("choice", "B", "(A)"),
    ("choice", "A", "the answer is a dog"),
    ("choice", "C", "The answer is B, not C"),
    ("boxed", "1", "{\\boxed{1" + "{" * 5000),
]


@pytest.mark.parametrize(("way", "answer", "text"), RIGHT)
def test_right_answers(way: str, answer: str, text: str) -> None:
    assert Matcher(way=way).is_right(answer, text)
    assert Matcher(way=way).is_right(answer, answer) or way == "boxed"


@pytest.mark.parametrize(("way", "answer", "text"), WRONG)
def test_wrong_answers(way: str, answer: str, text: str) -> None:
    assert not Matcher(way=way).is_right(answer, text)


def test_a_pattern_gives_its_group_of_the_last_match() -> None:
    tagged = Matcher(way="regex", pattern=r"<answer>(.*?)</answer>")
    assert tagged.is_right("yes", "<answer>no</answer> or <answer> yes </answer>")
    assert not tagged.is_right("no", "<answer>no</answer> or <answer>yes</answer>")
    assert not tagged.is_right("yes", "yes")
    assert tagged.is_right("1,000", "<answer>1000.0</answer>")
    assert Matcher(way="regex", pattern=r"[A-Z]{3}\d").is_right("ABC1", "it is ABC1")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"way": "numbr"}, "match is 'numbr'; did you mean 'number'?"),
        ({"way": "regex"}, "match=regex needs a pattern"),
        ({"way": "number", "pattern": "x"}, "match=number takes no pattern"),
        ({"way": "regex", "pattern": "("}, "is not a regular expression: missing \\), unterminated"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Matcher(**settings)


@given(st.fractions(max_denominator=999), st.integers(-(10**9), 10**9))
def test_numbers_are_compared_by_value(value: Fraction, whole: int) -> None:
    match = Matcher(way="number")
    assert match.is_right(
        f"{value.numerator}/{value.denominator}", f"we get {3 * value.numerator}/{3 * value.denominator}"
    )
    assert match.is_right(f"{whole:,}", f"= {whole}.00")
    assert not match.is_right(str(whole), f"= {whole + 1}")


def test_a_pattern_that_backtracks_without_end_is_stopped(monkeypatch):
    monkeypatch.setattr(matching, "SECONDS", 0.1)
    hangs = Matcher(way="regex", pattern="(a+)+$")
    with pytest.raises(RunFailed, match=r"pattern '\(a\+\)\+\$' takes more than 0.1 s on a text of 2,001 characters"):
        hangs.is_right("b", "a" * 2000 + "b")
    assert hangs.is_right("aaa", "baaa")  # and the next completion is matched as before
