"""Rows from real files: what is read, what is held out, and what every broken file is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from whet.data.rows_task import RowsTask
from whet.errors import UserError
from whet.records import Example, Message
from whet.tasks.check import check_task

GOOD = [{"prompt": f"capital {i}?", "answer": f"city {i}", "region": i % 3} for i in range(200)]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def rows_of(path: Path) -> RowsTask:
    return RowsTask(path=str(path))


def all_of(path: Path) -> list[Example]:
    task = RowsTask(path=str(path), held_out_rows=0)
    return sorted(task.draw(task.training_rows, seed=(0, 1)), key=lambda example: example.id)


def test_a_good_file_keeps_every_promise(tmp_path: Path) -> None:
    check_task(rows_of(write(tmp_path / "a.jsonl", GOOD)))


def test_columns_answers_and_conversations_are_read(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
    path = write(tmp_path / "a.jsonl", [{"prompt": "p", "answer": "a", "x": [1, None]}, {"prompt": chat}])
    first, second = all_of(path)
    assert first == Example(id="row-1", prompt="p", answer="a", columns={"x": [1, None]})
    assert second.prompt == (Message(role="system", content="be brief"), Message(role="user", content="héllo"))
    assert (second.answer, second.columns) == ("", {})


def test_gzip_blank_lines_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    text = '\ufeff{"prompt": "a"}\r\n\r\n{"prompt": "b"}'
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    assert [(e.id, e.prompt) for e in all_of(plain)] == [("row-1", "a"), ("row-2", "b")]
    assert all_of(plain) == all_of(packed)


def test_sides_together_are_the_file_and_a_prompt_is_never_on_both(tmp_path: Path) -> None:
    doubled = GOOD + [{**row, "answer": "other"} for row in GOOD]
    task = rows_of(write(tmp_path / "a.jsonl", doubled))
    held = task.held_out(1000)
    trained = task.draw(400 - len(held), seed=(0,))
    assert len({e.id for e in (*held, *trained)}) == 400
    assert not {e.prompt for e in held} & {e.prompt for e in trained}
    assert 10 <= len(held) <= 80  # 40 expected


def test_appending_rows_moves_no_prompt_to_the_other_side(tmp_path: Path) -> None:
    before = rows_of(write(tmp_path / "a.jsonl", GOOD[:100]))
    after = rows_of(write(tmp_path / "b.jsonl", GOOD))
    old = {e.prompt for e in before.held_out(100)}
    seen_before = {row["prompt"] for row in GOOD[:100]}
    assert old == {e.prompt for e in after.held_out(200)} & seen_before


def test_a_row_without_an_answer_is_never_correct(tmp_path: Path) -> None:
    task = rows_of(write(tmp_path / "a.jsonl", GOOD))
    bare = Example(id="x", prompt="p", answer="")
    assert not task.correct(bare, "")
    assert task.score(bare, "").reward == 0.0
    gold = Example(id="x", prompt="p", answer=" city\n")
    assert task.correct(gold, "city ")
    assert not task.correct(gold, "City")


def test_share_zero_keeps_everything_for_training(tmp_path: Path) -> None:
    task = RowsTask(path=str(write(tmp_path / "a.jsonl", GOOD[:3])), held_out_share=0.0)
    assert task.held_out(10) == []
    assert {e.id for e in task.draw(3, seed=(0,))} == {"row-1", "row-2", "row-3"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "a"', r"bad.jsonl:2 is not JSON"),
        (b"[1, 2]", r"bad.jsonl:2 must be a JSON object, not a list"),
        (b'{"answer": "a"}', r"bad.jsonl:2 has no 'prompt' \(it has: answer\)"),
        (b'{"prompt": 3}', r"bad.jsonl:2: 'prompt' must be a string or a list of messages, not a number"),
        (b'{"prompt": ""}', r"bad.jsonl:2 has an empty prompt"),
        (b'{"prompt": []}', r"bad.jsonl:2: 'prompt' must end with"),
        (b'{"prompt": [{"role": "assistant", "content": "x"}]}', r"bad.jsonl:2: 'prompt' must end with"),
        (b'{"prompt": [{"role": "robot", "content": "x"}]}', r"bad.jsonl:2: the role 'robot'"),
        (b'{"prompt": [{"role": "user", "content": 1}]}', r"bad.jsonl:2: the content of a message"),
        (b'{"prompt": ["x"]}', r"bad.jsonl:2: a message of 'prompt'"),
        (b'{"prompt": "a", "answer": [42]}', r"bad.jsonl:2: 'answer' must be text, a number.* not a list"),
        (b'{"prompt": "a", "x": NaN}', r"bad.jsonl:2: NaN is not JSON"),
        (b'{"prompt": "a", "x": 1e999}', r"bad.jsonl:2 is not JSON"),
        (b'{"prompt": "a", "completions": 1}', r"bad.jsonl:2: the column name 'completions' is reserved"),
        (b'{"prompt": "\xff"}', r"bad.jsonl:2 is not UTF-8: invalid start byte at byte 12"),
        (b'{"prompt": "\\ud800"}', r"bad.jsonl:2 holds a lone surrogate"),
        (b'{"prompt": ' + b"[" * 100_000, r"bad.jsonl:2 is not JSON"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line + b"\n")
    with pytest.raises(UserError, match=message) as caught:
        rows_of(path)
    assert "\n" not in str(caught.value)


def test_a_column_of_another_name_is_to_be_mapped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "a"}, {"question": "b"}])
    with pytest.raises(UserError, match=r"a.jsonl has no 'prompt', .*: write 'task.columns=\{prompt: question\}'"):
        rows_of(path)


def test_files_that_are_empty_missing_or_not_gzip(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(UserError, match="has no rows"):
        rows_of(tmp_path / "empty.jsonl")
    with pytest.raises(UserError, match=r"cannot read .*gone.jsonl: No such file"):
        rows_of(tmp_path / "gone.jsonl")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="bare is a folder without files of rows"):
        rows_of(tmp_path / "bare")
    for name, data in {"text.jsonl.gz": b"plain", "cut.jsonl.gz": gzip.compress(b"x" * 1000)[:-9]}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match="not a complete gzip file"):
            rows_of(tmp_path / name)


def test_a_side_without_rows_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", [{"prompt": "a"}])
    for share in (0.1, 1 - 2**-40):
        with pytest.raises(UserError, match=r"one\.jsonl: all rows have the same prompt or twin, .*: add rows"):
            RowsTask(path=str(path), held_out_share=share)
    assert RowsTask(path=str(path), held_out_rows=0).held_out(1) == []
    whole = RowsTask(path=str(path), held_out_share=1.0)
    assert len(whole.held_out(9)) == 1
    with pytest.raises(UserError, match="all prompts of the task are held out"):
        whole.draw(1, seed=(0, 1))
    with pytest.raises(UserError, match=r"held_out_share is 1\.5"):
        RowsTask(path=str(path), held_out_share=1.5)


def test_steps_walk_through_the_file_in_epochs(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": "a"}) + "\n" for i in range(10)))
    task = RowsTask(path=str(path), held_out_share=0)
    drawn = [example.id for step in range(1, 6) for example in task.draw(4, seed=(7, step))]
    assert len(set(drawn[:10])) == len(set(drawn[10:20])) == 10  # two epochs of ten rows in five steps of four
    assert drawn[:10] != drawn[10:20]
    assert [e.id for e in task.draw(4, seed=(8, 1))] != drawn[:4]


def test_a_small_file_always_has_something_held_out(tmp_path):
    for count in range(2, 12):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"{count}-{i}", "answer": "a"}) + "\n" for i in range(count)))
        task = RowsTask(path=str(path))
        held_out = {example.id for example in task.held_out(count)}
        assert held_out
        assert held_out.isdisjoint(example.id for example in task.draw(3 * count, seed=(0, 1)))


def test_chat_poses_plain_text_as_a_message(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"prompt": "2+2?", "answer": "4"}\n{"prompt": [{"role": "user", "content": "3+3?"}], "answer": "6"}\n'
    )
    drawn = [
        *RowsTask(path=str(path), chat=True).draw(1, seed=(0, 1)),
        *RowsTask(path=str(path), chat=True).held_out(2),
    ]
    assert {example.prompt[0].content for example in drawn} == {"2+2?", "3+3?"}
    assert {example.prompt[0].role for example in drawn} == {"user"}


def test_numbers_booleans_and_nulls_are_answers_and_other_files_are_read(tmp_path):
    rows = [{"q": "1+1?", "gold": 2, "tag": "x"}, {"q": "is it?", "gold": True}, {"q": "hm?", "gold": None}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "b.csv").write_text("q,gold\n1/2?,0.5\n")
    task = RowsTask(path=str(tmp_path), columns={"prompt": "q", "answer": "gold"}, match="number", held_out_rows=0)
    drawn = {example.prompt: example for example in task.draw(4, seed=(0, 1))}
    assert {prompt: example.answer for prompt, example in drawn.items()} == {
        "1+1?": "2",
        "is it?": "true",
        "hm?": "",
        "1/2?": "0.5",
    }
    assert drawn["1+1?"].columns == {"tag": "x", "q": "1+1?", "gold": 2}  # for reward functions, by their own names
    assert task.correct(drawn["1/2?"], "that is 50%")
    assert not task.correct(drawn["hm?"], "0")
    assert len({example.id for example in drawn.values()}) == 4
    with pytest.raises(UserError, match=r"'glod', which is not a column .* did you mean 'gold'\? \(columns: q,"):
        RowsTask(path=str(tmp_path), columns={"prompt": "q", "answer": "glod"})
