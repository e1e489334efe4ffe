"""A guard passes on what a user's task knows, and nothing that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.errors import RunFailed
from whet.records import Example
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Gold, HasAlphabet, HasText, Task, Votes

PLAIN = """
from whet.records import Example, Score

class Plain:
    name = "plain"
    def draw(self, count, *, seed):
        return [Example(id=str(i), prompt="p", answer="a") for i in range(count)]
    def held_out(self, count):
        return [Example(id="h", prompt="p", answer="a")]
    def score(self, example, text):
        return Score(reward={"nan": float("nan"), "large": 2e17, "word": "w"}.get(text, 0), parts={})
    def correct(self, example, text):
        return text == "a"

class Spelled(Plain):
    alphabet = "ap"

class Golden(Plain):
    def gold(self, example, text):
        if text == "boom":
            raise ZeroDivisionError("no")
        return {"word": "3", "nan": float("nan"), "true": True, "large": 2e17}.get(text, len(text))

class Both(Spelled, Golden):
    pass

class Voting(Plain):
    def vote(self, example, text):
        return {"none": None, "number": 3}.get(text, text.lower())

class Written(Plain):
    def training_text(self):
        yield "ap"
        yield "pa"

class Numbered(Plain):
    def training_text(self):
        yield 3
"""
EXAMPLE = Example(id="h", prompt="p", answer="a")


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    path = tmp_path / "own.py"
    path.write_text(PLAIN)
    return {name: guarded_task(f"{path}:{name}", {}) for name in ("Plain", "Spelled", "Golden", "Both", "Voting")}


def test_a_guard_has_what_the_task_has(tasks: dict[str, Task]) -> None:
    found = {name: (isinstance(task, HasAlphabet), isinstance(task, Gold)) for name, task in tasks.items()}
    assert found.pop("Voting") == (False, False)
    assert found == {"Plain": (False, False), "Spelled": (True, False), "Golden": (False, True), "Both": (True, True)}
    assert [name for name, task in tasks.items() if isinstance(task, Votes)] == ["Voting"]


def test_the_training_text_is_passed_on_and_must_be_text(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(PLAIN)
    plain, written, numbered = (guarded_task(f"{path}:{name}", {}) for name in ("Plain", "Written", "Numbered"))
    assert not isinstance(plain, HasText)
    assert isinstance(written, HasText)
    assert list(written.training_text()) == ["ap", "pa"]
    assert isinstance(numbered, HasText)
    with pytest.raises(RunFailed, match="training_text gave a int, not texts"):
        list(numbered.training_text())


def test_votes_are_passed_on_and_must_be_text(tasks: dict[str, Task]) -> None:
    task = tasks["Voting"]
    assert isinstance(task, Votes)
    assert (task.vote(EXAMPLE, "Yes"), task.vote(EXAMPLE, "none")) == ("yes", None)
    with pytest.raises(RunFailed, match="vote gave a int, not a text or None on example 'h'"):
        task.vote(EXAMPLE, "number")


def test_the_true_reward_is_passed_on(tasks: dict[str, Task]) -> None:
    both = tasks["Both"]
    assert isinstance(both, Gold)
    assert isinstance(both, HasAlphabet)
    assert both.gold(EXAMPLE, "four") == 4.0
    assert both.alphabet == "ap"
    assert both.correct(EXAMPLE, "a") is True


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("boom", "in gold: ZeroDivisionError: no on example 'h'"),
        ("word", "gold gave '3', not a finite number within ±1e+15 on example 'h'"),
        ("nan", "gold gave nan, not a finite number within ±1e+15 on example 'h'"),
        ("large", "gold gave 2e+17, not a finite number within ±1e+15 on example 'h'"),
        ("true", "gold gave True, not a finite number within ±1e+15 on example 'h'"),
    ],
)
def test_what_is_no_reward_names_task_and_example(tasks: dict[str, Task], text: str, told: str) -> None:
    task = tasks["Golden"]
    assert isinstance(task, Gold)
    with pytest.raises(RunFailed) as error:
        task.gold(EXAMPLE, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nan", "score gave the reward nan, not a finite number within ±1e+15 on example 'h'"),
        ("large", "score gave the reward 2e+17, not a finite number within ±1e+15 on example 'h'"),
        ("word", "score raised ValueError: could not convert string to float: 'w'"),
    ],
)
def test_a_score_without_a_reward_names_task_and_example(tasks: dict[str, Task], text: str, told: str) -> None:
    """Where methods are compared a task scores outside the worker."""
    with pytest.raises(RunFailed) as error:
        tasks["Plain"].score(EXAMPLE, text)
    assert told in str(error.value)
    assert tasks["Plain"].score(EXAMPLE, "else").reward == 0.0
