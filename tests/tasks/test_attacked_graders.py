"""Completions that fooled or stopped a grader once, each with the score that it must get."""

from __future__ import annotations

from typing import Any

import pytest

from whet.cli.arguments import read_options
from whet.tasks.instructions.instruction_checks import number_bullet_lists
from whet.tasks.loading import load_task
from whet.tasks.matching import Matcher
from whet.tasks.maths.equality import is_same
from whet.tasks.maths.extraction import final_answer
from whet.tasks.puzzles.countdown import grade
from whet.tasks.puzzles.hanoi import read_moves


@pytest.mark.parametrize("separator", ["\n", "  ", " , ", "\n\n", ".\n"])
@pytest.mark.parametrize("move", ["A->B", "A  B", "AB", "a to b"])
def test_a_long_list_of_moves_before_words_is_read_at_once(move: str, separator: str) -> None:
    """An ambiguous pattern took minutes with forty moves."""
    moves = separator.join([move] * 4000)
    assert read_moves(moves) == [("A", "B")] * 4000
    assert read_moves(f"{moves}\nDone") == []
    hanoi = load_task("hanoi", {"chat": True})
    example = hanoi.draw(1, seed=(0, 1))[0]
    assert hanoi.score(example, f"<answer>{moves}\nDone</answer>").reward == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("- **A**: x\n- **B**: y", 2),
        ("* **A** x\n* *b* y\n* c", 3),
        ("  - a\n-b", 2),
        ("* * *\n---\n- - -", 0),
        ("**bold** text", 0),
        ("-- a", 0),
        ("a - b * c", 0),
    ],
)
def test_bullets(text: str, count: int) -> None:
    assert number_bullet_lists(text, num_bullets=count)
    assert not number_bullet_lists(text, num_bullets=count + 1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 1,000\n\\boxed{1000}", "1000"),
        ("\\boxed{\\frac{1}{2}}\n#### 0.5", "1/2"),
        ("\\boxed{5.0}\n<answer>5</answer>", "5"),
        ("\\boxed{18}\n#### 17", None),
        ("#### 18\n<answer>17</answer>", None),
    ],
)
def test_marks_contradict_each_other_by_value(text: str, answer: str | None) -> None:
    found = final_answer(text)
    assert found is None if answer is None else found is not None and is_same(answer, found)


@pytest.mark.parametrize(
    "found",
    [
        *("5 sixths", "5 hundredths", "5 halves", "5 millions", "5 dozens", "5 squared", "5 factorial", "5 is wrong"),
        *("5 instead of six", "less than 5", "5 or less than ten", "at least 5"),
    ],
)
def test_words_that_change_a_number_are_no_unit(found: str) -> None:
    assert not is_same("5", found)
    assert is_same("5", "5 apples")
    assert is_same("50", "50 percent")


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [("(1+2)*3=9", True), ("(1+2)*3 = 9.0", True), ("(1+2)*3=8", False), ("(1+2)*3=9,0", False), ("(1+2)*3", True)],
)
def test_an_equation_must_be_true(answer: str, is_right: bool) -> None:
    assert grade(answer, [1, 2, 3], 9)[1] is is_right


PROGRAMS: list[tuple[str, str, float]] = [
    ("def f(x):\n    raise StopIteration", "assert all(map(f, [1, 2, 3]))", 0.0),
    ("def f(x):\n    raise StopIteration", "for got in map(f, [1, 2]):\n    assert got == 5", 0.0),
    ("def f(x):\n    yield x\n    yield x + 1", "assert list(f(1)) == [1, 2]", 1.0),
    (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass P:\n    x: int\n\n"
        "def f(x):\n    return P(x).x",
        "assert f(4) == 4",
        1.0,
    ),
]


@pytest.mark.parametrize(("program", "test", "reward"), PROGRAMS)
def test_programs(program: str, test: str, reward: float, tmp_path: Any) -> None:
    import json

    rows = [{"prompt": f"Write f, {'please ' * n}.", "tests": [test], "solution": program} for n in range(12)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    task = load_task("code", {"path": str(tmp_path / "rows.json"), "chat": True, "held_out_rows": 0})
    example = task.draw(1, seed=(0, 1))[0]
    assert task.score(example, f"```python\n{program}\n```").reward == reward


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("I am not at all sure what the result might be.", None),
        ("\\text{the larger of the two given areas}", "\\text{the larger of the two given areas}"),
        ("June 20", "June 20"),
        ("east", "east"),
        ("the answer is 12 apples", "12 apples"),
    ],
)
def test_a_sentence_without_a_number_is_no_reference_answer(answer: str, expected: str | None) -> None:
    assert Matcher(way="maths").expected(answer) == expected


def test_options_of_a_task_may_be_written_as_recipes_have_them() -> None:
    assert read_options(["task.columns={prompt: q}", "data.limit=3", "level=2"]) == {
        "columns": {"prompt": "q"},
        "limit": 3,
        "level": 2,
    }
