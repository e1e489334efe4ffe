"""The prompts of a file as a task: the same for the same seed, in epochs, on the side that the split says."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.data.written import assistant, user, write_lines
from whet.data.rows_task import RowsTask
from whet.data.sources import Source, load_rows
from whet.data.split import split_rows
from whet.data.task import DataTask
from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.grading.reward_functions import load_rewards, score_with
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Task

HELD_OUT_SHARE = 0.25


def pair(i: int, prompt: int | None = None) -> dict[str, object]:
    return {"prompt": f"question {i if prompt is None else prompt}", "chosen": f"good {i}", "rejected": f"bad {i}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Sixty pairs of forty prompts."""
    return write_lines(tmp_path / "pairs.jsonl", [pair(i, i % 40) for i in range(60)])


@pytest.fixture
def task(path: Path) -> DataTask:
    return DataTask(path=str(path), held_out_share=HELD_OUT_SHARE)


def everything(task: DataTask) -> tuple[list[Example], list[Example]]:
    """All training examples, those of one epoch, and all held-out ones."""
    held_out = task.held_out(1000)
    return task.draw(40 - len(held_out), seed=(0, 1)), held_out


def test_it_is_a_task(task: DataTask) -> None:
    assert isinstance(task, Task)
    assert task.name == "data"


def test_both_sides_hold_every_prompt_once_and_share_none(task: DataTask) -> None:
    training, held_out = ({example.prompt for example in side} for side in everything(task))
    assert not training & held_out
    assert training | held_out == {f"question {i}" for i in range(40)}
    assert held_out


def test_the_sides_are_those_that_training_on_the_rows_has(task: DataTask, path: Path) -> None:
    rows = load_rows(Source(path=str(path))).rows
    sides = [{row.prompt for row in side} for side in split_rows(rows, HELD_OUT_SHARE)]
    assert [{example.prompt for example in side} for side in everything(task)] == sides


def test_no_prompt_comes_again_before_all_have_come(task: DataTask) -> None:
    size = 40 - len(task.held_out(1000))
    count = 7
    steps = -(-3 * size // count)
    drawn = [example.id for step in range(1, steps + 1) for example in task.draw(count, seed=(5, step))]
    epochs = [drawn[start : start + size] for start in range(0, 3 * size, size)]
    assert all(len(set(epoch)) == size for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_the_seed_names_the_order(path: Path, task: DataTask) -> None:
    again = DataTask(path=str(path), held_out_share=HELD_OUT_SHARE)
    assert task.draw(12, seed=(3, 2)) == again.draw(12, seed=(3, 2))
    assert task.draw(12, seed=(3, 2)) != task.draw(12, seed=(4, 2))
    assert task.draw(12, seed=(3, 2)) != task.draw(12, seed=(3, 3))
    assert task.held_out(5) == again.held_out(5) == task.held_out(1000)[:5]


def test_an_example_shows_the_first_answer_of_its_prompt(task: DataTask) -> None:
    by_prompt = {example.prompt: example for side in everything(task) for example in side}
    assert by_prompt["question 3"] == Example(id="row-4", prompt="question 3", answer="good 3")  # not good 43
    ids = [example.id for example in by_prompt.values()]
    assert len(set(ids)) == 40


def test_conversations_are_asked_up_to_the_last_answer(tmp_path: Path) -> None:
    talks = [{"messages": [user(f"a{i}"), assistant("b"), user("c"), assistant(f"d{i}")]} for i in range(20)]
    task = DataTask(path=str(write_lines(tmp_path / "talks.jsonl", talks)))
    (example,) = task.held_out(1)
    assert isinstance(example.prompt, tuple)
    assert example.prompt[1:] == (Message(role="assistant", content="b"), Message(role="user", content="c"))
    assert example.answer == f"d{example.prompt[0].content[1:]}"


def test_the_data_does_not_say_what_is_right(task: DataTask) -> None:
    (example,) = task.held_out(1)
    for text in (example.answer, "", "anything"):
        assert task.score(example, text) == Score(reward=0.0, parts={})
        assert task.correct(example, text) is None


def test_a_recipe_finds_it_by_name(path: Path, task: DataTask) -> None:
    found = guarded_task("data", {"path": str(path), "held_out_share": HELD_OUT_SHARE})
    assert found.held_out(3) == task.held_out(3)
    assert found.draw(3, seed=(1, 1)) == task.draw(3, seed=(1, 1))
    with pytest.raises(UserError, match="task data needs the option 'path'"):
        guarded_task("data", {})
    with pytest.raises(UserError, match=r"absent\.jsonl: No such file"):
        guarded_task("data", {"path": str(path.with_name("absent.jsonl"))}).held_out(1)


def test_a_directory_stands_for_its_rows(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [pair(i) for i in range(20)])
    write_lines(tmp_path / "other.jsonl", [pair(i + 100) for i in range(20)])
    named, whole = (DataTask(path=str(place)) for place in (tmp_path / "rows.jsonl", tmp_path))
    assert named.held_out(9) == whole.held_out(9)


QUESTIONS = [{"problem": f"What is {i}+{i}?", "solution": 2 * i, "level": i % 3} for i in range(60)]
NAMES = {"prompt": "problem", "answer": "solution"}


def test_columns_are_read_by_the_names_that_the_mapping_gives_them(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "q.jsonl", QUESTIONS)
    task = DataTask(path=str(path), columns=NAMES, match="number")
    drawn = {example.prompt: example for side in (task.draw(200, seed=(0, 1)), task.held_out(60)) for example in side}
    seventh = drawn["What is 7+7?"]
    own = {"level": 1, "problem": "What is 7+7?", "solution": 14}  # of reward functions, also by their own names
    assert (seventh.id, seventh.answer, seventh.columns) == ("row-8", "14", own)
    assert task.score(seventh, "7 and 7 are 14.") == Score(reward=1.0, parts={"correct": 1.0})
    assert not task.correct(seventh, "14, or 15")


@pytest.mark.parametrize("kind", [DataTask, RowsTask])
def test_a_reward_function_may_ask_for_a_mapped_column_by_either_name(tmp_path: Path, kind: Any) -> None:
    task = kind(path=str(write_lines(tmp_path / "q.jsonl", QUESTIONS)), columns=NAMES)
    (tmp_path / "both.py").write_text(
        "def f(completions, answer, solution):\n"
        "    return [float(a == str(s) and s == int(c)) for c, a, s in zip(completions, answer, solution)]\n"
    )
    examples = task.held_out(3)
    with asyncio.Runner() as runner:
        texts = [example.answer for example in examples[:2]] + ["-1"]
        scores = score_with(load_rewards([(f"{tmp_path}/both.py:f", 1.0)]), examples, texts, runner=runner)
    assert [score.reward for score in scores] == [1.0, 1.0, 0.0]


def test_the_format_is_that_of_the_mapped_columns(tmp_path: Path) -> None:
    """Not that of the columns by their own names: question and answer would come first."""
    rows = [{"question": f"q{i}", "answer": f"a{i}", "text": f"t{i}"} for i in range(40)]
    path = str(write_lines(tmp_path / "q.jsonl", rows))
    columns = {"prompt": "question", "completion": "answer"}
    assert load_rows(Source(path=path, columns=columns, as_prompts=True)).format == "prompt_completion"


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        (QUESTIONS, {}, r"e\.g\. 'data\.columns=\{prompt: problem, answer: solution\}', or name the format"),
        (QUESTIONS, {"columns": {"prompt": "problm"}}, "'problm', which is not a column .* did you mean 'problem'"),
        (QUESTIONS, {"columns": "problem"}, "columns is 'problem': write names and columns"),
        (
            [{"prompt": row["problem"], "solution": 1, "gold": 2} for row in QUESTIONS],
            {"match": "number"},
            r"have no answer for match=number: .* write 'data.columns=\{answer: solution\}' \(or answer: gold\)",
        ),
        ([{**row, "solution": "none"} for row in QUESTIONS], {"columns": NAMES, "match": "number"}, "is 'none'"),
        (QUESTIONS, {"columns": NAMES, "match": "numeric"}, "match is 'numeric'"),
        (QUESTIONS, {"columns": NAMES, "pattern": "x"}, "pattern is for match=regex"),
        (QUESTIONS, {"sets": ["a.jsonl"]}, "needs the option 'path', or 'sets'"),
    ],
)
def test_what_cannot_be_read_so_is_told(tmp_path: Path, rows: list, options: dict, told: str) -> None:
    path = write_lines(tmp_path / "q.jsonl", rows)
    with pytest.raises(UserError, match=told):
        DataTask(path=str(path), **options).held_out(1)


def test_an_object_in_a_row_is_reached_with_a_dot(tmp_path: Path) -> None:
    """As verl writes its files."""
    rows = [{"prompt": [user(f"q{i}")], "reward_model": {"ground_truth": str(i), "style": "rule"}} for i in range(40)]
    path = write_lines(tmp_path / "q.jsonl", rows)
    task = DataTask(path=str(path), columns={"answer": "reward_model.ground_truth"}, match="exact")
    (example,) = task.held_out(1)
    assert isinstance(example.prompt, tuple)
    assert f"q{example.answer}" == example.prompt[0].content
    assert example.columns == {"reward_model": {"ground_truth": example.answer, "style": "rule"}}


def test_prompts_alone_are_a_task_for_reward_functions(tmp_path: Path) -> None:
    rows = [{"prompt": f"write about {i}", "words": i, "answer": None if i % 2 else i} for i in range(40)]
    task = DataTask(path=str(write_lines(tmp_path / "q.jsonl", [{**row, "answer": None} for row in rows])))
    (example,) = task.held_out(1)
    assert (example.answer, example.columns) == ("", {"words": int(str(example.prompt).split()[-1])})
    assert task.training_rows + len(task.held_out(100)) == 40
    mixed = DataTask(path=str(write_lines(tmp_path / "mixed.jsonl", rows)))  # half of the answers are null
    assert mixed.training_rows + len(mixed.held_out(100)) == 40
    told = r"training prompts have no answer for match=number: the answer of row-.* is ''; repair the rows, or raise"
    with pytest.raises(UserError, match=told):
        DataTask(path=str(tmp_path / "mixed.jsonl"), match="number").held_out(1)
    with pytest.raises(UserError, match="the answer of row-"):  # the column is there, and empty
        DataTask(path=str(tmp_path / "q.jsonl"), match="number").held_out(1)


def test_question_and_answer_are_gsm8k_only_in_its_form(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": i} for i in range(40)]
    for number, row in enumerate(rows):
        row["answer"] = f"so\n#### {number}"
    solved = load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", rows))))
    plain = load_rows(Source(path=str(write_lines(tmp_path / "b.jsonl", [{**row, "answer": 7} for row in rows]))))
    assert (solved.format, plain.format) == ("gsm8k", "question_answer")
    task = DataTask(path=str(tmp_path / "a.jsonl"), match="number")
    (example,) = task.held_out(1)
    assert task.correct(example, f"It is {example.prompt[0].content[1:]}.")  # type: ignore[union-attr]


def test_sets_are_mixed_by_their_weights_and_held_out_once(tmp_path: Path) -> None:
    for name in "ab":
        write_lines(tmp_path / f"{name}.jsonl", [{"prompt": f"{name}{i}", "completion": "x"} for i in range(100)])
    sets = [{"path": str(tmp_path / "a.jsonl"), "weight": 2.5}, str(tmp_path / "b.jsonl")]
    task = DataTask(sets=sets, held_out_rows=40)
    held_out = [str(example.prompt) for example in task.held_out(1000)]
    assert len(held_out) == len(set(held_out)) == 40
    epoch = Counter(str(example.prompt) for example in task.draw(task.training_rows, seed=(0, 1)))
    assert set(epoch) | set(held_out) == {f"{name}{i}" for name in "ab" for i in range(100)}
    assert not set(epoch) & set(held_out)
    assert {count for prompt, count in epoch.items() if prompt.startswith("b")} == {1}
    assert {count for prompt, count in epoch.items() if prompt.startswith("a")} == {2, 3}
    thrice = sum(count == 3 for count in epoch.values())
    assert 25 <= thrice <= 55  # of about 80 rows of a, half come a third time


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ([{"path": "a.jsonl", "wieght": 2}], "a set has no key 'wieght'; did you mean 'weight'"),
        ([{"weight": 2}], "is not a set: write a path"),
        ([3], "3 is not a set"),
        ([{"path": "a.jsonl", "weight": 0}], "weight is 0, must be above 0"),
        (["a.jsonl", "pairs.jsonl"], "holds pairs: sets that are mixed must hold rows of one kind"),
    ],
)
def test_sets_that_cannot_be_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: list[object], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "a.jsonl", [{"prompt": f"{i}", "completion": "x"} for i in range(10)])
    write_lines(tmp_path / "pairs.jsonl", [pair(i) for i in range(10)])
    with pytest.raises(UserError, match=told):
        DataTask(sets=sets).held_out(1)
