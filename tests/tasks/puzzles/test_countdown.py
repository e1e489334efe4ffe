"""Countdown: expressions against Python's own arithmetic, rewards by hand, and answers that try to cheat."""

from __future__ import annotations

import ast
import gzip
import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.real import real
from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.puzzles.countdown import LEVELS, Countdown, grade
from whet.tasks.puzzles.expressions import NotAnExpression, read_expression

PLAIN, CHAT = Countdown(level=2), Countdown(level=2, chat=True)


@pytest.mark.parametrize("task", [*(Countdown(level=level) for level in LEVELS), CHAT], ids=str)
def test_task_keeps_its_promises(task: Countdown) -> None:
    check_task(task)


def test_problems_have_the_answer_they_name_and_do_not_give_it_away() -> None:
    examples = [*PLAIN.draw(300, seed=(0, 1)), *PLAIN.held_out(100)]
    in_order = 0
    for one in examples:
        numbers, _, target = one.columns["question"].partition(":")
        assert eval(one.answer) == int(target)
        used = [node.value for node in ast.walk(ast.parse(one.answer)) if isinstance(node, ast.Constant)]
        given_numbers = [int(number) for number in numbers.split(",")]
        assert sorted(used) == sorted(given_numbers)
        in_order += read_expression(one.answer).numbers == tuple(given_numbers)
    assert in_order < len(examples) / 2
    assert not {one.twin for one in examples[:300]} & {one.twin for one in examples[300:]}


def question(text: str) -> Example:
    return Example(id="x", prompt="p", answer="", columns={"question": text})


ASKED = question("19,4,19:42")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("(19+4)+19", 1.0),
        ("19 + 4 + 19", 1.0),
        ("19+4+19 = 42", 1.0),
        ("4+19+19=42", 1.0),
        ("4 − -19 + 19", 1.0),  # 4 − (−19) + 19 uses each number once
        ("19+19-4", 0.1),
        ("19*4/19", 0.1),
        ("19+19-4=42", 0.1),  # what it is said to make does not count
        ("42", 0.0),
        ("19+4", 0.0),
        ("19+4+19+0", 0.0),
        ("19+4+19+1-1", 0.0),
        ("(19+4)+19)", 0.0),
        ("((19+4)+19", 0.0),
        ("19+4+19; 1", 0.0),
        ("19 4 19", 0.0),
        ("194+19", 0.0),
        ("19/(4-4)+19", 0.0),
        ("19**4+19", 0.0),
        ("19//4+19", 0.0),
        ("int('42')", 0.0),
        ("__import__('os').system('true')", 0.0),
        ("9" * 5000, 0.0),
        ("(" * 199, 0.0),
        ("-" * 199, 0.0),
        ("１９+４+１９", 0.0),  # full-width digits are no answer
        ("19+4+19\n19+4+19", 0.0),
        ("", 0.0),
        ("=42", 0.0),
        ("42 = 42", 0.0),
    ],
)
def test_rewards(text: str, reward: float) -> None:
    assert PLAIN.score(ASKED, text).reward == reward
    assert PLAIN.correct(ASKED, text) == (reward == 1)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("I try 19+4 first.\n<answer>(19 + 4) + 19</answer>", True),
        ("<answer>(19 + 4) + 19 = 42</answer>", True),
        ("Answer: 19+4+19", True),
        ("**Answer:** 19+4+19", True),
        ("<answer>19+4+19</answer> or rather <answer>19+19-4</answer>", False),
        ("<answer>19+4+19, 19+19-4</answer>", False),
        ("19+4+19 is one way\nso there", False),
    ],
)
def test_the_final_answer_counts(text: str, is_right: bool) -> None:
    assert CHAT.correct(ASKED, text) is is_right


numbers = st.integers(0, 999).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=8,
)


def by_python(text: str) -> Fraction | None:
    """The value by Python's parser with exact numbers."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        for name, child in ast.iter_fields(node):
            if isinstance(child, ast.Constant):
                call = ast.Call(func=ast.Name("F", ast.Load()), args=[child], keywords=[])
                setattr(node, name, call)
    try:
        return eval(compile(ast.fix_missing_locations(tree), "", "eval"), {"F": Fraction})
    except ZeroDivisionError:
        return None


@settings(max_examples=200)
@given(expressions.filter(lambda text: len(text) < 190))
def test_values_are_those_of_python(text: str) -> None:
    wanted = by_python(text)
    if wanted is None:
        with pytest.raises(NotAnExpression):
            read_expression(text)
    else:
        assert read_expression(text).value == wanted


@given(st.text(max_size=80))
def test_no_text_raises_anything_else(text: str) -> None:
    assert grade(text, [1, 2, 3], 6) in {(False, False), (True, False), (True, True)}


def test_published_solutions_are_right() -> None:
    path = real("countdown/countdown_3to4.jsonl.gz")
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 20_000
    assert all(grade(row["solution"], row["nums"], row["target"]) == (True, True) for row in rows)
    assert not any(grade(row["solution"], row["nums"], row["target"] + 1)[1] for row in rows)
