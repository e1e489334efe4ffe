"""Parquet files are read as the same rows in JSON lines: plain, in folders, nested, with nulls and numbers of NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.data.written import write_lines
from whet.data.rows_task import RowsTask
from whet.data.sources import Source, load_rows
from whet.data.task import DataTask

CHAT = [{"role": "user", "content": "Is 2 even?"}, {"role": "assistant", "content": "Yes."}]
LONGER = [{"role": "system", "content": "Answer briefly."}, *CHAT, {"role": "user", "content": "And 3?"}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "conversations": [{"messages": CHAT}, {"messages": [*LONGER, {"role": "assistant", "content": "No."}]}],
    "pairs": [
        {"prompt": LONGER, "chosen": "No.", "rejected": "Yes."},
        {"prompt": CHAT[:1], "chosen": "Yes.", "rejected": "Maybe."},
    ],
    "answers": [{"prompt": f"{n}+1=", "answer": n + 1, "level": n / 4, "note": None} for n in range(12)],
    "labels": [{"prompt": f"{n}?", "completion": "yes", "label": n % 2 == 0} for n in range(12)],
    "candidates": [{"prompt": f"{n}?", "completions": ["a", "b"], "scores": [0.5, 1.0]} for n in range(12)],
}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A column has one type, so that messages without a key have it as null."""
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ROWS)
def test_rows_are_those_of_json_lines(tmp_path: Path, kind: str) -> None:
    lines = load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", ROWS[kind]))))
    table = load_rows(Source(path=str(written(tmp_path / "a.parquet", ROWS[kind]))))
    assert table.rows
    assert (table.kind, table.rows, table.skipped) == (lines.kind, lines.rows, lines.skipped)
    assert [one.columns for one in table.placed] == [one.columns for one in lines.placed]
    (tmp_path / "lines").mkdir()
    half = len(ROWS[kind]) // 2
    for number, part in enumerate((ROWS[kind][:half], ROWS[kind][half:])):
        write_lines(tmp_path / "lines" / f"{number}.jsonl", part)
        written(tmp_path / "tables" / f"{number}.parquet", part)
    folders = [load_rows(Source(path=str(tmp_path / name))) for name in ("lines", "tables")]
    assert folders[0].rows == folders[1].rows
    assert len(folders[1].rows) == len(table.rows)


def test_fields_that_only_some_messages_have(tmp_path: Path) -> None:
    named = [
        {"messages": CHAT},
        {"messages": [{**CHAT[0], "weight": 0}, {**CHAT[1], "weight": 1}, *LONGER[-1:], CHAT[1]]},
    ]
    lines = load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", named))))
    assert load_rows(Source(path=str(written(tmp_path / "a.parquet", named)))).rows == lines.rows


@pytest.mark.parametrize("task", [RowsTask, DataTask])
def test_numbers_of_numpy_are_numbers(tmp_path: Path, task: Any) -> None:
    """Integers of all widths, floats, booleans; NaN is a missing value, as pandas writes it."""
    count = 12
    columns: dict[str, Any] = {
        "prompt": [f"{n}+1=" for n in range(count)],
        "answer": np.arange(1, count + 1, dtype=np.int16),
        "big": np.arange(count, dtype=np.uint64),
        "half": np.arange(count, dtype=np.float32) / 2,
        "flag": np.arange(count) % 2 == 0,
        "gap": np.where(np.arange(count) % 2 == 0, np.nan, 1.0),
        "vector": list(np.eye(count, 3, dtype=np.float64)),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    plain = [
        {"prompt": f"{n}+1=", "answer": n + 1, "big": n, "half": n / 2, "flag": n % 2 == 0}
        | {"gap": None if n % 2 == 0 else 1.0, "vector": [float(n == place) for place in range(3)]}
        for n in range(count)
    ]
    write_lines(tmp_path / "a.jsonl", plain)
    table, lines = (task(path=str(tmp_path / name), match="number") for name in ("a.parquet", "a.jsonl"))
    assert table.sides == lines.sides
    first = table.sides[0][0]
    assert {type(first.columns[name]) for name in ("big", "half", "flag")} == {int, float, bool}
    assert table.correct(first, f"= {first.answer}")
