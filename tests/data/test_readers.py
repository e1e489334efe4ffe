"""Every kind of file gives the same rows with their true lines, and every broken one is named."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from whet.errors import UserError
from whet.files.readers import Raw, read_file

ROWS = [{"prompt": 'a, "b"\nc', "n": "1"}, {"prompt": "é", "n": ""}, {"prompt": " ", "n": "x\ty"}]


def written(path: Path, text: str) -> Path:
    data = text.encode("utf-8")
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".xz":
        data = lzma.compress(data)
    path.write_bytes(data)
    return path


def as_csv(path: Path, delimiter: str) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "n"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    return path.read_bytes().decode("utf-8")


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".JSONL"])
def test_every_way_of_writing_gives_the_same_rows(tmp_path: Path, suffix: str, packing: str) -> None:
    if suffix in (".csv", ".tsv"):
        text = as_csv(tmp_path / "plain", "," if suffix == ".csv" else "\t")
        lines = [2, 4, 5]  # a quoted line break inside the first row
    elif suffix == ".json":
        text, lines = json.dumps(ROWS, indent=1), [2, 6, 10]
    else:
        text, lines = "\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS), [1, 3, 5]
    found = list(read_file(written(tmp_path / f"a{suffix}{packing}", text)))
    assert [raw.columns for raw in found] == ROWS
    assert [raw.line for raw in found] == lines
    assert not any(raw.problem for raw in found)


def test_json_lines_may_be_called_json(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", '{"a": 1}\n{"a": 2}\n')
    assert list(read_file(path)) == [Raw(1, {"a": 1}), Raw(2, {"a": 2})]


def test_a_broken_line_is_told_with_its_number_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n[1]\n{"a": "\xff"}\n{"a": NaN}\n{"a": "\\ud800"}\n{"a": 2}\n')
    found = list(read_file(path))
    assert [raw.columns for raw in found if not raw.problem] == [{"a": 1}, {"a": 2}]
    problems = [raw.problem.replace(str(path), "FILE") for raw in found if raw.problem]
    assert [problem.split(":", 1)[0] + ":" + problem.split(":", 1)[1][0] for problem in problems] == [
        f"FILE:{line}" for line in (2, 3, 4, 5, 6)
    ]
    assert "FILE:2 is not JSON" in problems[0]
    assert problems[1] == "FILE:3 must be a JSON object, not a list"
    assert problems[2] == "FILE:4 is not UTF-8: invalid start byte at byte 7"
    assert problems[3].startswith("FILE:5: NaN is not JSON")
    assert "FILE:6 holds a lone surrogate" in problems[4]


def test_broken_elements_of_a_list_are_told_by_the_line_they_begin_on(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'[\n {"a": 1},\n 7, {"a":\n "\xff"},\n {"a": NaN}, {"a": 2}\n]\n')
    found = list(read_file(path))
    assert [(raw.line, bool(raw.problem)) for raw in found] == [(2, False), (3, True), (3, True), (5, True), (5, False)]
    assert found[1].problem == f"{path}:3 (row 2) must be a JSON object, not a number"
    assert "not UTF-8" in found[2].problem
    assert f"{path}:5 (row 4) is not JSON" in found[3].problem


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b'[{"a": 1},\n {"a": ]', r"a.json:2 is not JSON"),
        ("a.json", b'[{"a": 1}', r"a.json:1 is not JSON: no , or \] after a row"),
        ("a.json", b'[{"a": 1}\n{"a": 2}]', r"a.json:2 is not JSON: no , or \] after a row"),
        ("a.json", b"[", r"a.json:1 is not JSON"),
        ("a.json", b"[] []", r"a.json: text after the list"),
        ("a.json", b"[" * 100_000, r"a.json:1 is not JSON"),
        ("a.csv", b"a,a\n1,2\n", r"a.csv:1 must name every column once"),
        ("a.csv", b"a,\n1,2\n", r"a.csv:1 must name every column once"),
        ("a.csv", b'a,b\n"1,2\n', r"a.csv:2 is not CSV: unexpected end of data"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-9], r"a.jsonl.gz is not a complete gzip file"),
        ("a.jsonl.gz", b'{"a": 1}', r"a.jsonl.gz is not a complete gzip file"),
        ("a.jsonl.xz", lzma.compress(b'{"a": 1}\n' * 99)[:-9], r"a.jsonl.xz is not a complete xz file"),
        ("a.txt", b"x", r"a.txt: rows are read from .jsonl, .ndjson, .json, .csv, .tsv, .parquet"),
    ],
)
def test_a_file_that_is_broken_as_a_whole_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        list(read_file(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_row_of_csv_with_too_many_cells_or_bad_bytes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2,3\n\n4,5\n\xff,6\n")
    wide, good, bad = read_file(path)
    assert wide.problem == f"{path}:2 has 3 cells, the header has 2"
    assert good == Raw(4, {"a": "4", "b": "5"})
    assert f"{path}:5 holds" in bad.problem
    assert "not UTF-8" in bad.problem


def test_a_cell_of_csv_may_be_longer_than_python_allows_by_default(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a\n" + "x" * 200_000 + "\n")
    assert [len(raw.columns["a"]) for raw in read_file(path)] == [200_000]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone.jsonl: No such file"):
        list(read_file(tmp_path / "gone.jsonl"))


def test_parquet_gives_the_rows_as_json_does(tmp_path: Path) -> None:
    rows = [{"chosen": [{"role": "user", "content": "q"}], "score": 1.5}, {"chosen": None, "score": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_file(tmp_path / "a.parquet")) == [Raw(1, rows[0]), Raw(2, rows[1])]
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing")
    with pytest.raises(UserError, match=r"cannot read .*b.parquet as parquet"):
        list(read_file(tmp_path / "b.parquet"))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"a.parquet: reading Parquet needs the package pyarrow, which is not"):
        list(read_file(tmp_path / "a.parquet"))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3), max_size=4), st.sampled_from([None, 1]))
def test_a_list_reads_as_json_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list, indent: int | None
) -> None:
    path = tmp_path_factory.mktemp("list") / "a.json"
    text = json.dumps(rows, indent=indent, ensure_ascii=False)
    path.write_text(text, encoding="utf-8", newline="")
    assert [raw.columns for raw in read_file(path)] == rows
