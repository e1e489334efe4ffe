"""A log is read on from where the last reading ended, whatever was done to it in between."""

import json
from pathlib import Path

from whet.runs.logs import Appender, write_atomic
from whet.runs.tail import read_tail


def test_each_reading_has_what_was_added(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    assert read_tail(log).rows == ()  # not there yet
    written = Appender(log)
    written.append({"step": 1, "kl": 0.5})
    first = read_tail(log)
    assert first.rows == ({"step": 1, "kl": 0.5},)
    assert read_tail(log, first.cursor).rows == ()
    written.append({"step": 2, "kl": 0.25})
    with log.open("ab") as half:
        half.write(b'{"step": 3, "kl"')
    second = read_tail(log, first.cursor)
    assert second.rows == ({"step": 2, "kl": 0.25},)
    with log.open("ab") as half:
        half.write(b": 1}\n")
    assert read_tail(log, second.cursor).rows == ({"step": 3, "kl": 1},)
    written.close()


def test_a_log_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    """As a resumed run does; also where the new log is longer than what was read of the old one."""
    log = tmp_path / "metrics.jsonl"
    write_atomic(log, b'{"step": 1}\n{"step": 2}\n')
    read = read_tail(log)
    write_atomic(log, b'{"step": 1, "kl": 0.125}\n{"step": 2, "kl": 0.5}\n{"step": 3, "kl": 1}\n')
    again = read_tail(log, read.cursor)
    assert again.starts_again
    assert [row["step"] for row in again.rows] == [1, 2, 3]
    log.write_bytes(log.read_bytes()[:25])  # the same file, cut: its first line is 25 bytes long
    cut = read_tail(log, again.cursor)
    assert cut.starts_again
    assert cut.rows == ({"step": 1, "kl": 0.125},)


def test_damaged_lines_are_left_out_and_told(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    huge = "1" + "0" * 400
    lines = [
        "{",
        "[]",
        '{"step": "one"}',
        '{"step": -1}',
        '{"step": 4, "a": NaN, "b": Infinity, "c": "x", "d": 2.5, "e": ' + huge + "}",
    ]
    log.write_text("\n".join([*lines, "[" * 100_000, '{"step": 7}']) + "\n")
    found = read_tail(log)
    assert found.rows == ({"step": 4, "d": 2.5}, {"step": 7})
    assert [problem.split(":")[0] for problem in found.problems] == [
        f"metrics.jsonl, line {n}" for n in (1, 2, 3, 4, 6)
    ]
    log.write_bytes(log.read_bytes() + b"\xff\n")
    assert "line 8" in read_tail(log, found.cursor).problems[0]  # numbered as in the file


def test_no_reading_is_longer_than_asked(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "kl": 0.5} for step in range(40)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, cursor, more = [], "", True
    while more:
        tail = read_tail(log, cursor, most=100)
        assert len(tail.rows) <= 4
        found, cursor, more = [*found, *tail.rows], tail.cursor, tail.has_more
    assert found == rows
    log.write_text("x" * 200)
    endless = read_tail(log, most=100)
    assert not endless.has_more
    assert "longer than 100 bytes" in endless.problems[0]


def test_what_is_no_cursor_and_what_is_no_file(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 1}\n')
    for cursor in ("x", "1-2", "1-2-3-4", "-1-0-0", "१-0-0", "9999999999999-0-0"):
        assert read_tail(log, cursor).rows == ({"step": 1},)
    assert "not a regular file" in read_tail(tmp_path).problems[0]
