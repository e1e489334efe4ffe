"""Logs that are appended to, and files that appear whole."""

import gzip
import json
import math
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import RunFailed
from whet.runs.logs import (
    Appender,
    Rendered,
    atomic_file,
    cut_log,
    json_bytes,
    json_line,
    plain_numbers,
    read_log,
    read_rows,
    write_rows,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def append_all(path: Path, rows: list[dict]) -> None:
    log = Appender(path)
    for row in rows:
        log.append(row)
    log.close()


@given(row=st.dictionaries(st.text(), JSON))
def test_a_line_gives_back_every_bit_and_is_one_line(row: dict) -> None:
    line = json_line(row)
    assert line.count(b"\n") == 1
    assert json.loads(line) == row  # floats compare exactly: repr is the shortest text that reads back the same


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    row = {"a": math.nan, "b": [1.5, math.inf, {"c": -math.inf}], "d": (0.1, math.nan)}
    assert json_line(row) == b'{"a": null, "b": [1.5, null, {"c": null}], "d": [0.1, null]}\n'


def test_plain_numbers_are_sorted_and_not_finite_ones_are_none() -> None:
    import torch

    given_values = {"z": 1, "a": math.nan, "m": torch.tensor(0.5), "b": -math.inf}
    assert list(plain_numbers(given_values).items()) == [("a", None), ("b", None), ("m", 0.5), ("z", 1)]
    with pytest.raises(ValueError, match="step"):
        plain_numbers({"step": 3.0})


def test_a_torn_last_line_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    append_all(log, [{"step": 1, "x": 0.1}, {"step": 2, "x": 0.2}])
    with log.open("ab") as file:
        file.write(b'{"step": 3, "x"')
    assert [row["step"] for row in read_log(log)] == [1, 2]
    append_all(log, [{"step": 3, "x": 0.3}])  # a new process does not write behind the torn piece
    assert [row["step"] for row in read_log(log)] == [1, 2, 3]


@pytest.mark.parametrize("bad", [b'{"step": 2, "x"', b"[1, 2]", b'{"x": 1}', b"\xff\xfe", b"", b'{"step": "2"}'])
def test_a_bad_line_in_the_middle_names_file_and_line(tmp_path: Path, bad: bytes) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b'{"step": 1}\n' + bad + b'\n{"step": 3}\n')
    for read in (lambda: read_log(log), lambda: cut_log(log, 1)):
        with pytest.raises(RunFailed, match=r"metrics\.jsonl, line 2"):
            read()


def test_cut_keeps_the_bytes_of_earlier_steps(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b'{"step": 1,   "x": 1e-1}\n{"step": 2}\n{"step": 2, "y": 1}\n{"step": 3}\n{"st')
    cut_log(log, 2)
    assert log.read_bytes() == b'{"step": 1,   "x": 1e-1}\n{"step": 2}\n{"step": 2, "y": 1}\n'
    cut_log(log, -1)
    assert log.read_bytes() == b""
    cut_log(tmp_path / "absent.jsonl", 2)
    assert not (tmp_path / "absent.jsonl").exists()


def test_compressed_rows_depend_on_the_rows_alone(tmp_path: Path) -> None:
    rows = [{"text": "α" * 100, "logprobs": [-0.1, -2 / 3]}, {"text": "", "logprobs": []}]
    write_rows(tmp_path / "one.jsonl.gz", rows)
    write_rows(tmp_path / "another-name.jsonl.gz", iter(rows))
    data = (tmp_path / "one.jsonl.gz").read_bytes()
    assert data == (tmp_path / "another-name.jsonl.gz").read_bytes()
    assert data[3] == 0  # no name, comment or extra field: RFC 1952, 2.3
    assert data[4:8] == b"\0\0\0\0"  # no time
    assert read_rows(tmp_path / "one.jsonl.gz") == rows
    assert [json.loads(line) for line in gzip.decompress(data).splitlines()] == rows


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_damaged_file_of_rows_is_named(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, [{"x": 1}, {"x": 2}])
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-3])
    with pytest.raises(RunFailed, match=name):
        read_rows(tmp_path / name)


def test_rows_that_raise_leave_the_old_file_and_no_trace(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"x": 1}])

    def rows():
        yield {"x": 2}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "a.jsonl", rows())
    assert read_rows(tmp_path / "a.jsonl") == [{"x": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_an_atomic_file_is_not_seen_before_it_is_whole(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a") as file:
        file.write(b"half")
        file.flush()
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "a").read_bytes() == b"half"


def test_a_line_that_does_not_fit_leaves_no_piece(tmp_path: Path) -> None:
    """The operating system itself takes only a part of the line: the file may not grow past 100 bytes."""
    log = Appender(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.append({"step": 2, "text": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
    log.append({"step": 2})
    assert [row["step"] for row in read_log(tmp_path / "metrics.jsonl")] == [1, 2]
    log.close()


def test_a_pipe_in_place_of_a_log_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(RunFailed, match=r"metrics.jsonl is a pipe or device, not a file: remove it"):
        read_log(tmp_path / "metrics.jsonl")


def test_values_that_are_rendered_stand_last_in_a_line() -> None:
    numbers = Rendered(b"[1.50, null]")
    for row in ({"a": numbers}, {"a": numbers, "b": numbers}, {"x": "é", "a": numbers, "y": [True, None]}):
        line = json_line(row)
        assert line.endswith(b"\n")
        plain = {name: [1.5, None] if value is numbers else value for name, value in row.items()}
        assert json.loads(line) == plain
        assert list(json.loads(line)) == sorted(plain, key=lambda name: row[name] is numbers)
    assert json_line({"x": 1, "a": numbers}) == b'{"x": 1, "a": [1.50, null]}\n'


@pytest.mark.parametrize("value", [{"é": "\u2028\ud800", "n": [1, -0.0, 1e300, 5e-324, True, None]}, (), "", 10**30])
def test_lines_are_those_of_json(value: object) -> None:
    assert json_bytes(value) == json.dumps(value).encode()
