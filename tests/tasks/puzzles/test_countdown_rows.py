"""Countdown from files: rows as they are published, rows that are refused, the split by numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.real import real
from whet.errors import UserError
from whet.tasks.check import check_task
from whet.tasks.puzzles.countdown_rows import CountdownRows

ROWS = [{"nums": [n, n + 3, 2], "target": 2 * n + 5, "solution": f"({n} + {n + 3}) + 2"} for n in range(1, 41)]


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


@pytest.mark.parametrize("chat", [False, True])
def test_task_keeps_its_promises(tmp_path: Path, chat: bool) -> None:
    check_task(CountdownRows(path=written(tmp_path, ROWS), chat=chat))


def test_rows_without_solutions_and_rows_twice(tmp_path: Path) -> None:
    rows = [{"nums": [1, 2, 4], "target": 7}, {"nums": [4, 2, 1], "target": 8}, {"nums": [1, 2, 4], "target": 7}]
    task = CountdownRows(path=written(tmp_path, rows), held_out_share=0)
    assert [(one.prompt, one.answer) for one in task.sides[0]] == [("1,2,4:7>", ""), ("4,2,1:8>", "")]
    assert len({one.twin for one in task.sides[0]}) == 1  # the same numbers are on one side
    assert task.score(task.sides[0][0], "1+2+4").reward == 1
    assert task.score(task.sides[0][0], "1*2+4").reward == 0.1
    assert task.score(task.sides[0][0], "3+4").reward == 0


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"nums": [1, 2]}, "is no countdown problem"),
        ({"nums": "1,2", "target": 3}, "is no countdown problem"),
        ({"nums": [1, 2.5], "target": 3}, "is no countdown problem"),
        ({"nums": [1], "target": 1}, "is no countdown problem"),
        ({"nums": [1, True], "target": 2}, "is no countdown problem"),
        ({"nums": [1, 2], "target": 3, "solution": "1-2"}, "does not make 3"),
        ({"nums": [1, 2], "target": 3, "solution": "3"}, "does not make 3"),
    ],
)
def test_wrong_rows_are_refused(tmp_path: Path, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CountdownRows(path=written(tmp_path, [row])).held_out(1)


def test_published_rows() -> None:
    task = CountdownRows(path=real("countdown/countdown_3to4.jsonl.gz"))
    trained, held_out = task.sides  # every one of the solutions is graded when it is read
    assert len(trained) + len(held_out) > 19_000
    assert not {one.twin for one in trained} & {one.twin for one in held_out}
    assert all(task.score(one, one.answer).reward == 1 for one in held_out)
