"""The task maths: files as they are published, prompts with an instruction, and answers that score full marks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.real import real
from whet.data.maths_task import INSTRUCTION, MathsTask
from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.matching import Matcher
from whet.tasks.maths import equality

GSM8K = [{"question": f"Ann has {n} eggs and buys 2. How many?", "answer": f"{n}+2 = <<{n}+2={n + 2}>>{n + 2}\n#### {n + 2}"} for n in range(1000, 1040)]  # fmt: skip # noqa: E501
MATH = [{"problem": f"Halve ${n}$.", "solution": f"It is $\\boxed{{\\frac{{{n}}}{{2}}}}$.", "answer": f"\\frac{{{n}}}{{2}}", "subject": "Prealgebra", "level": 1} for n in range(40)]  # fmt: skip # noqa: E501
WORDS = [{"input": f"There were {n} bales, and now twice as many. How many?", "target": 2.0 * n} for n in range(40)]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("rows", "answer"), [(GSM8K, "1002"), (MATH, "0"), (WORDS, "0.0")], ids=["gsm8k", "math", "mawps"]
)
def test_published_shapes_are_read_as_they_are(tmp_path: Path, rows: list[dict[str, Any]], answer: str) -> None:
    task = MathsTask(path=written(tmp_path / "rows.jsonl", rows), format_weight=0.5)
    check_task(task)
    training, evaluation = task.sides
    assert len(training) + len(evaluation) == 40
    assert len(evaluation) > 3
    first = next(one for one in (*training, *evaluation) if one.id == "row-1")
    question = next(iter(rows[0].values()))
    assert [(turn.role, turn.content) for turn in first.prompt] == [("user", f"{question}\n{INSTRUCTION}")]
    assert task.score(first, first.answer).reward == 1.5
    assert task.correct(first, f"The answer is {answer}.")
    assert task.score(first, "I do not know").reward == 0


def test_the_solution_may_be_the_answer(tmp_path: Path) -> None:
    task = MathsTask(path=written(tmp_path / "rows.jsonl", MATH), columns={"prompt": "problem", "answer": "solution"})
    one = task.held_out(1)[0]
    assert one.answer.startswith("It is $")
    assert task.correct(one, one.answer)


def test_the_instruction_is_appended_or_a_template_or_absent(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", WORDS)
    plain = MathsTask(path=path, chat=False, instruction="Q: {question}\nA:").held_out(1)[0]
    assert str(plain.prompt).startswith("Q: There were")
    assert str(plain.prompt).endswith("How many?\nA:")
    bare = MathsTask(path=path, instruction="").held_out(1)[0]
    assert bare.prompt_text == f"user: {plain.columns['input']}"


def test_the_split_does_not_depend_on_the_instruction(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", WORDS)
    ids = [{one.id for one in MathsTask(path=path, instruction=text).held_out(99)} for text in (INSTRUCTION, "Answer:")]
    assert ids[0] == ids[1]


def test_a_completion_without_a_mark_scores_where_the_last_number_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", WORDS)
    strict, lenient = MathsTask(path=path), MathsTask(path=path, last_number=True)
    one = strict.held_out(1)[0]
    text = f"first 7, then {one.columns['target']:g} bales"
    assert (strict.correct(one, text), lenient.correct(one, text)) == (False, True)


def test_votes_agree_where_answers_do(tmp_path: Path) -> None:
    task = MathsTask(path=written(tmp_path / "rows.jsonl", MATH))
    one = task.held_out(1)[0]
    votes = [
        task.vote(one, text) for text in ("\\boxed{1/2}", "#### 0.5", "\\boxed{x = \\frac12}", "\\boxed{2}", "half")
    ]
    assert votes[0] == votes[1] == votes[2] != votes[3]
    assert votes[4] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format_weight": 2.0}, "format_weight is 2.0, must be from 0 to 1"),
        ({"match": ""}, "match is '' "),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        MathsTask(path=written(tmp_path / "rows.jsonl", WORDS), **options)


def test_rows_without_a_final_answer_are_refused(tmp_path: Path) -> None:
    long = [{"problem": f"p{n}", "solution": "so it is clear\nand nothing more is said"} for n in range(20)]
    with pytest.raises(UserError, match="training prompts have no answer for match=maths"):
        _ = MathsTask(path=written(tmp_path / "rows.jsonl", long)).sides


def _lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(real(name), "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("has_math_verify", [True, False])
@pytest.mark.parametrize(
    ("name", "count"),
    [("gsm8k/test.jsonl.gz", 1319), ("math500/test.jsonl.gz", 500), ("math_word_problems/mawps.jsonl.gz", 1981)],
)
def test_every_published_answer_scores_full_marks(
    name: str, count: int, has_math_verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_math_verify:
        monkeypatch.setattr(equality, "has_math_verify", lambda: False)
    examples = MathsTask(path=real(name), held_out_share=1.0).held_out(10_000)
    task = MathsTask(path=real(name))
    assert len(examples) == count
    assert [one.id for one in examples if task.score(one, one.answer).reward != 1] == []
    others = [*examples[1:], examples[0]]  # the answer of another problem is right only by chance
    assert sum(bool(task.correct(one, other.answer)) for one, other in zip(examples, others, strict=True)) < count / 20


def test_the_boxes_of_the_solutions_of_math500_equal_their_answers() -> None:
    matcher = Matcher(way="maths")
    rows = _lines("math500/test.jsonl.gz")
    assert [row["answer"] for row in rows if not matcher.is_right(row["answer"], row["solution"])] == []


def test_gsm8k_solutions_are_judged_as_their_authors_did() -> None:
    """5,276 solutions of four models with the verdict of Cobbe et al. (2021)."""
    matcher = Matcher(way="maths")
    answers = {row["question"]: row["answer"] for row in _lines("gsm8k/test.jsonl.gz")}
    rows = _lines("gsm8k/example_model_solutions.jsonl.gz")
    judged = [(answers[row["question"]], one) for row in rows for one in row.values() if isinstance(one, dict)]
    assert len(judged) == 5276
    assert [one for answer, one in judged if matcher.is_right(answer, one["solution"]) != one["is_correct"]] == []
