"""Every packaged task passes the bench, with the options that change how it grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.puzzles.test_connections import PUZZLES
from whet.records import Example
from whet.tasks.bench import check_reward
from whet.tasks.loading import ELSEWHERE, TASKS, load_task
from whet.tasks.procedural import Procedural
from whet.tasks.protocol import HasWrongPlay

SUMS = [{"prompt": f"What is {n} plus {3 * n + 1}?", "answer": str(4 * n + 1)} for n in range(60)]
SOLUTIONS = [{**row, "answer": f"{row['answer']} is what it makes.\n#### {row['answer']}"} for row in SUMS]
CHOICES = [
    {
        "prompt": f"Which of the words of list {n} is a colour? (A) x{n} (B) y{n} (C) z{n} (D) w{n}",
        "answer": "ABCD"[n % 4],
    }
    for n in range(60)
]
BOXES = [{**row, "answer": rf"It makes $\boxed{{{row['answer']}}}$."} for row in SUMS]
PROGRAMS = [
    {
        "task_id": n,
        "text": f"Write a function that adds {'one ' * n}to a number and doubles what it makes.",
        "code": f"def change_{n}(x):\n    return 2 * (x + {n})",
        "test_list": [f"assert change_{n}({x}) == {2 * (x + n)}" for x in (0, 3, -7)],
    }
    for n in range(30)
]
NUMBERS = [{"nums": [n, n + 2, 7], "target": 2 * n + 9, "solution": f"{n} + {n + 2} + 7"} for n in range(3, 43)]
FILES: dict[str, Any] = {
    **{"puzzles": PUZZLES, "sums": SUMS, "choices": CHOICES, "boxes": BOXES, "solutions": SOLUTIONS},
    **{"programs": PROGRAMS, "numbers": NUMBERS},
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("arithmetic", {"level": 4}),
    ("arithmetic", {"chat": True}),
    ("reverse", {}),
    ("reverse", {"chat": True}),
    ("sorting", {}),
    ("sorting", {"chat": True}),
    ("spell_backward", {}),
    ("spell_backward", {"chat": True}),
    ("countdown", {}),
    ("countdown", {"chat": True, "level": 3}),
    ("hanoi", {}),
    ("hanoi", {"chat": True}),
    ("reviews", {}),
    ("connections", {"path": "puzzles"}),
    ("connections", {"path": "puzzles", "chat": True}),
    ("connections", {"path": "puzzles", "groups": 2}),
    ("rows", {"path": "sums"}),
    ("rows", {"path": "solutions", "match": "number"}),
    ("rows", {"path": "choices", "match": "choice"}),
    ("rows", {"path": "boxes", "match": "boxed", "chat": True}),
    ("data", {"path": "sums", "match": "number"}),
    ("maths", {"path": "solutions"}),
    ("maths", {"path": "boxes", "format_weight": 0.2}),
    ("code", {"path": "programs", "chat": True}),
    ("countdown_rows", {"path": "numbers"}),
    ("countdown_rows", {"path": "numbers", "chat": True}),
    ("hanoi", {"trace": True}),
    ("reasoning_gym", {"dataset": "spell_backward", "format_weight": 0.5}),
    ("guessing", {}),
    ("grid", {}),
    ("connections_game", {"path": "puzzles"}),
    ("hanoi_moves", {}),
    ("adventure", {}),
    ("tools", {"task": "arithmetic"}),
    ("word_problems", {}),
    ("word_problems", {"path": "solutions"}),
    ("mixture", {"tasks": ["sorting", {"name": "countdown", "weight": 2}]}),
]
PLAYED = ("arithmetic", "reverse", "sorting", "spell_backward", "countdown", "hanoi", "reviews", "connections")
# No gold answers to attack: tests/tasks/instructions has completions with their scores; a text goes on in many ways.
UNANSWERED = ("ifeval", "corpus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows")
    for name, rows in FILES.items():
        (made / f"{name}.json").write_text(json.dumps(rows))
    return made


def with_files(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    return {**options, **({"path": str(folder / f"{options['path']}.json")} if "path" in options else {})}


def test_every_packaged_task_has_a_case() -> None:
    assert {name for name, _ in CASES} | {*UNANSWERED} == {*TASKS, *ELSEWHERE}


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_packaged_task_passes(name: str, options: dict[str, Any], folder: Path) -> None:
    report = check_reward(load_task(name, with_files(options, folder)), examples=8)
    assert report.is_passed, report.failed
    assert report.gold_mean is not None
    assert report.wrong_most is not None
    assert report.wrong_most < report.gold_mean


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] in PLAYED], ids=str)
def test_wrong_play_solves_nothing(name: str, options: dict[str, Any], folder: Path) -> None:
    task = load_task(name, with_files(options, folder))
    assert isinstance(task, HasWrongPlay)
    for example in (*task.draw(40, seed=(0, 1)), *task.held_out(10)):
        plays = task.wrong_play(example, seed=1)
        assert len(plays) >= 2
        assert plays == task.wrong_play(example, seed=1)
        best = task.best(example) if name == "reviews" else example.answer  # type: ignore[attr-defined]
        for text in plays:
            assert task.score(example, text).reward < task.score(example, best).reward
            assert not task.correct(example, text) or name == "reviews"


def test_hanoi_plays_by_the_rules() -> None:
    task = load_task("hanoi", {"level": 2})
    parts = [task.score(e, text).parts for e in task.draw(20, seed=(0, 1)) for text in task.wrong_play(e, seed=0)]  # type: ignore[attr-defined]
    assert len(parts) > 80
    assert all(one["correct"] == 0 for one in parts)


def test_countdown_makes_legal_expressions_of_another_value() -> None:
    task = load_task("countdown", {})
    example = Example(id="x", prompt="1,2,3:6>", answer="1*2*3", columns={"question": "1,2,3:6"})
    legal = [text for text in task.wrong_play(example, seed=0) if task.score(example, text).parts["legal"]]  # type: ignore[attr-defined]
    assert legal  # neither their sum nor their product, which are 6
    assert all(sorted(c for c in text if c.isdigit()) == ["1", "2", "3"] for text in legal)


def test_near_misses_of_generated_tasks_are_no_answers() -> None:
    for name in ("arithmetic", "reverse", "sorting", "spell_backward"):
        task = load_task(name, {"chat": True})
        assert isinstance(task, Procedural)
        for example in task.draw(50, seed=(3, 1)):
            assert example.answer not in task.wrong_play(example, seed=0)
