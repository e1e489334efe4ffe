"""The prompts of a file as a task: the same for the same seed, in epochs, on the side that the split says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.written import assistant, user, write_lines
from whet.data.sources import Source, load_rows
from whet.data.split import split_rows
from whet.data.task import DataTask
from whet.errors import UserError
from whet.records import Example, Message, Score
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
        assert task.correct(example, text) is False


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
