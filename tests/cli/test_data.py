"""`whet data`: what it prints, what it writes, and how wrong input ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.data.written import write_lines
from whet.data.formats import FORMATS

ROWS = [{"prompt": f"question {i}", "chosen": "a longer answer", "rejected": f"bad {i}"} for i in range(20)]


def test_explore_prints_the_facts_and_a_sample(whet: Whet, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*ROWS, {**ROWS[0], "rejected": "a  longer answer"}])
    result = whet("data", "explore", path, "--samples", 1)
    assert result.code == 0, result.err
    assert "20 pairs of 21 rows read, format pairs" in result.out
    assert "1 tie" in result.out
    assert "100 % of pairs [84 % … 100 %]" in result.out
    assert "+1 words [+1 … +1]" in result.out
    assert f"left out: {path}:21 has two equal sides" in result.out
    assert result.out.count("a longer answer") == 1


def test_explore_as_json_with_pictures(whet: Whet, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ROWS)
    result = whet("data", "explore", path, "--json", "--out", tmp_path / "out")
    found = json.loads(result.out)
    assert (found["source"], found["kind"], found["rows"]) == (str(path), "pairs", 20)
    assert found["length_bias"]["words_more"]["mean"] == 1.0
    assert found["lengths"]["chosen"]["words"]["mean"] == 3.0
    assert len(found["samples"]) == 3
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in Path(found["page"]).read_text("utf-8")


@pytest.mark.parametrize(
    ("row", "options", "told"),
    [
        ({"text": "once upon a time"}, (), "1 texts of 1 rows read, format text"),
        ({"problem": "1+1?"}, ("--column", "prompt=problem"), "1 prompts of 1 rows read, format prompts"),
        (
            {"problem": "1+1?", "solution": 2},
            ("--column", "prompt=problem", "--column", "answer=solution"),
            "1 dialogues of 1 rows read, format prompt_answer",
        ),
    ],
)
def test_texts_prompts_and_columns_by_other_names(
    whet: Whet, tmp_path: Path, row: dict[str, object], options: tuple[str, ...], told: str
) -> None:
    result = whet("data", "explore", write_lines(tmp_path / "a.jsonl", [row]), *options)
    assert (result.code, told in result.out) == (0, True), result.err + result.out


def test_formats_are_listed(whet: Whet) -> None:
    assert [row["name"] for row in json.loads(whet("data", "formats", "--json").out)] == list(FORMATS)
    told = whet("data", "formats").out
    assert all(name in told for name in FORMATS)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (None, [], "a.jsonl: No such file"),
        ("", [], "a.jsonl has no rows"),
        ('{"words": "x"}\n', [], "no known format has the columns words: say which is which, e.g. --column prompt=…"),
        (
            '{"question": "q", "solution": "a"}\n',
            [],
            "say which is which, e.g. --column prompt=question --column completion=solution, or name the format",
        ),
        ('{"prompt": 3}\n', [], "(fix them, or raise --max-skipped)"),
        (
            '{"prompt": "q", "chosen": "a"}\n',
            ["--format", "pairs"],
            "has no 'rejected', which the format pairs needs",
        ),
        ('{"prompt": "q"}\n', ["--format", "pear"], "no data format 'pear'; did you mean"),
        ('{"prompt": "q"}\n', ["--max-skipped", "7"], "max_skipped is 7"),
    ],
)
def test_wrong_input_ends_in_one_line(
    whet: Whet, tmp_path: Path, lines: str | None, options: list[str], message: str
) -> None:
    path = tmp_path / "a.jsonl"
    if lines is not None:
        path.write_text(lines)
    assert message in refused(whet, "data", "explore", path, *options)
