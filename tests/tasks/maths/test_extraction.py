"""Where a completion states its final answer, and completions that must not score."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.data.maths_task import MathsTask
from whet.tasks.maths.extraction import final_answer, is_marked_once


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{18}.", "18"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{1}\n\\boxed{2}", "2"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{1} and \\boxed{2}", "1, 2"),
        ("\\boxed{1", None),
        ("\\boxed{}", None),
        ("\\boxed 5", "5"),
        ("\\fbox{5}", "5"),
        ("steps\n#### 18", "18"),
        ("#### 1\n#### 2", "2"),
        ("<think>5</think><answer> 18 </answer>", "18"),
        ("<answer>\\boxed{18}</answer>", "18"),
        ("<answer>18</answer> \\boxed{18}", "18"),
        ("<answer>18</answer> \\boxed{19}", None),
        ("\\boxed{18}\n#### 19", None),
        ("The answer is 18.", "18"),
        ("The answer is:\n\n18", "18"),
        ("**Final answer:**\n$$18$$", "18"),
        ("The answer is\n18\nor so", "18"),
        ("The final answer is $\\frac{1}{2}$, I hope it is correct.", "\\frac{1}{2}"),
        ("**Answer:** 18 dollars", "18 dollars"),
        ("The answer to the question is $18 per day.", "$18 per day"),
        ("the answer is 3.5. Or not", "3.5"),
        ("...\nA: 18", "18"),
        ("The answer is 5. No: the answer is 6.", "6"),
        ("so 18", None),
        ("", None),
    ],
)
def test_final_answers(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_the_last_number_counts_only_where_it_is_allowed_and_no_answer_is_marked() -> None:
    assert final_answer("first 5, then 18 eggs") is None
    assert final_answer("first 5, then 18 eggs", last_number=True) == "18"
    assert final_answer("\\boxed{5}, then 18 eggs", last_number=True) == "5"
    assert final_answer("\\boxed{}, then 18 eggs", last_number=True) is None
    assert final_answer("5 − 18 = −13", last_number=True) == "-13"


@pytest.mark.parametrize(
    ("text", "once"),
    [("\\boxed{5}", True), ("#### 5", True), ("<answer>5</answer>", True), ("<answer>\\boxed{5}</answer>", True),
     ("\\boxed{5} \\boxed{5}", False), ("the answer is 5", False), ("\\boxed{}", False), ("5", False),
     ("\\boxed{5}\n#### 5", False), ("<answer>5</answer><answer>5</answer>", False)],
)  # fmt: skip
def test_one_mark_is_the_format(text: str, once: bool) -> None:
    assert is_marked_once(text) == once


PROMPT = "Janet has 16 eggs, eats 3 and sells the rest but 4 for $2 each. How much does she make?"
FORMAT = 0.25
# Completions for the answer 18, and what each scores with a format weight of 0.25.
HOSTILE = [
    ("\\boxed{18}", 1.25), ("16 - 3 - 4 = 9; 9 * 2 = 18\n#### 18", 1.25), ("<answer>$18.00</answer>", 1.25),
    ("The answer is 18 dollars.", 1.0), ("\\boxed{\\$18}", 1.25), ("\\boxed{18 \\text{ dollars}}", 1.25),
    ("\\boxed{17}", 0.25), ("18", 0.0), ("", 0.0), ("so she makes 18", 0.0), ("18 18 18 18", 0.0),
    ("18\n" * 100, 0.0), ("#### 17 #### 18", 0.0), ("\\boxed{17} \\boxed{18}", 0.0), ("\\boxed{18} \\boxed{17}", 0.0),
    ("\\boxed{17} or \\boxed{18} or \\boxed{19}", 0.0), ("\\boxed{17, 18, 19}", 0.25), ("\\boxed{17 or 18}", 0.25),
    ("\\boxed{\\{17, 18\\}}", 0.25), ("\\boxed{[17, 19]}", 0.25), ("\\boxed{17 < x < 19}", 0.25),
    ("\\boxed{18}\n\\boxed{17}", 0.0), ("\\boxed{18}\n#### 17", 0.0), ("#### 18\n\\boxed{17}", 0.0),
    ("<answer>18</answer>\n#### 17", 0.0), ("<answer>17</answer> <answer>18</answer>", 0.0),
    ("<answer>17</answer>\n<answer>18</answer>", 1.0),
    ("<answer>18</answer> <answer>17</answer>", 0.0), ("<answer>17 18</answer>", 0.25), ("<answer></answer>18", 0.0),
    ("\\boxed{}18", 0.0), ("\\boxed{} 18 \\boxed{}", 0.0), ("\\boxed{18", 0.0), ("boxed{18}", 0.0), ("\\boxed18", 0.0),
    ("\\boxed{17 = 18}", 0.25), ("\\boxed{18 = 17}", 0.25), ("\\boxed{x = 18 = 19}", 0.25),
    ("\\boxed{18 \\ne 17}", 0.25),
    ("\\boxed{18?}", 0.25), ("\\boxed{not 18}", 0.25), ("\\boxed{\\text{not } 18}", 0.25), ("\\boxed{-18}", 0.25),
    ("\\boxed{18%}", 1.25), ("\\boxed{0.18}", 0.25), ("\\boxed{1 8}", 0.25), ("\\boxed{180}", 0.25),
    ("\\boxed{18x}", 0.25),
    ("\\boxed{018}", 1.25), ("\\boxed{18 + 0x}", 0.25), ("\\boxed{１８}", 0.25), ("\\boxed{eighteen}", 0.25),
    ("\\boxed{\\frac{36}{2}}", 0.25), ("\\boxed{9 \\times 2}", 0.25), ("\\boxed{(16-3-4)2}", 0.25),
    ("\\boxed{1.8 \\times 10^1}", 1.25), ("\\boxed{\\approx 18}", 0.25),
    ("\\boxed{answer}", 0.25), ("The answer is 17 or 18.", 0.0), ("The answer is 18, not 17.", 0.0),
    ("The answer is not 18.", 0.0), ("The answer is 18. The answer is 17.", 0.0), ("answer answer answer 18", 0.0),
    (PROMPT, 0.0), (PROMPT + " Reason step by step, and put your final answer within \\boxed{}.", 0.0),
    ("x" * 20_000 + "\\boxed{18}", 1.25), ("\\boxed{" + "18 " * 200 + "}", 0.25), ("\\boxed{" * 2000 + "18", 0.0),
    ("\\boxed{18" + "0" * 4000 + "}", 0.25), ("\\boxed{" + "{" * 500 + "18" + "}" * 500 + "}", 0.25),
    ("\\boxed{16, 3, 4, 2}", 0.25), ("####", 0.0), ("#### ", 0.0), ("#### eighteen", 0.25), ("\\boxed{18\x00}", 0.25),
    ("\\boxed{18 or something else}", 0.25), ("\\boxed{18 minus nothing}", 0.25), ("\\boxed{__import__('os')}", 0.25),
]  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> MathsTask:
    path = tmp_path_factory.mktemp("maths") / "rows.jsonl"
    path.write_text(json.dumps({"question": PROMPT, "answer": "9 * 2 = <<9*2=18>>18\n#### 18"}) + "\n")
    return MathsTask(path=str(path), held_out_rows=0, format_weight=FORMAT)


@pytest.mark.parametrize(("text", "reward"), HOSTILE)
def test_what_a_completion_scores(task: MathsTask, text: str, reward: float) -> None:
    ((example,), _) = task.sides
    assert task.score(example, text).reward == reward
    assert task.correct(example, text) == (reward >= 1)


def test_there_are_enough_of_them() -> None:
    assert len({text for text, _ in HOSTILE}) >= 70


@given(st.text(alphabet="\\boxed{}<>/answer#: 0123456789\n$.", max_size=80))
def test_no_text_raises(text: str) -> None:
    final_answer(text, last_number=True)
    is_marked_once(text)


def test_long_texts_are_read_quickly() -> None:
    for text in ("\\boxed{" * 50_000, "<answer>" * 50_000, "####" * 50_000, "answer " * 50_000, "\\boxed{1}" * 20_000):
        final_answer(text, last_number=True)
        is_marked_once(text)
