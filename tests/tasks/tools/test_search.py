"""BM25 by hand, the texts of folders and rows, and what the tool answers."""

import json
import math
from pathlib import Path

import pytest

from whet.errors import UserError
from whet.tasks.tools.search import Collection, Entry, read_collection

TEXTS = ("Red apple", "red RED car", "blue sky over water", "")


def collection(*texts: str) -> Collection:
    return Collection([Entry(name=str(place), title="", text=text) for place, text in enumerate(texts)])


def scored(query: str) -> dict[str, float]:
    return {entry.name: score for score, entry in collection(*TEXTS[:3]).scores(query)}


def test_scores_by_hand() -> None:
    """Three texts of 2, 3 and 4 words, 3 at the mean; "red" is in two of them, "apple" in one."""
    red, apple = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    assert red == pytest.approx(0.470004, abs=1e-6)
    assert scored("red") == pytest.approx({"1": 0.470004 * 2 * 2.2 / 3.2, "0": 0.470004 * 2.2 / 1.9}, abs=1e-5)
    assert scored("Apple, RED!") == pytest.approx(
        {"0": (apple + red) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)), "1": red * 2 * 2.2 / (2 + 1.2)}
    )
    assert scored("red red")["0"] == pytest.approx(2 * scored("red")["0"])
    assert scored("green") == scored("") == {}
    assert list(scored("red")) == ["1", "0"]
    assert list(scored("apple red")) == ["0", "1"]


def test_equal_scores_are_in_order() -> None:
    assert [entry.name for _, entry in collection("one a", "two a", "three b", "four a").scores("a")] == ["0", "1", "3"]


def test_what_the_tool_answers() -> None:
    search = collection(*TEXTS).tool()
    assert search(query="water") == f"[2] (score {collection(*TEXTS).scores('water')[0][0]:.3f})\nblue sky over water"
    assert str(search(query="red", most=1)).count("(score") == 1
    assert str(search(query="red", most=0)).count("(score") == 1
    assert search(query="…") == "(no text has any of these words)"
    assert str(collection("x " + "y" * 2000).tool()(query="x")).endswith(f"\nx {'y' * 998} …")


def test_texts_of_a_folder_and_of_rows(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / "b.txt").write_text("the moon\n")
    (folder / "more" / "a.md").write_text("the sun")
    (folder / "c.bin").write_bytes(b"\xff")
    assert {entry.name: entry.text for entry in read_collection(str(folder)).entries} == {
        "b.txt": "the moon",
        "more/a.md": "the sun",
    }
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in [{"text": "a b", "title": "T", "id": 7}, {"text": "c"}]))
    assert read_collection(str(rows)).entries == [
        Entry(name="7", title="T", text="a b"),
        Entry(name="2", title="", text="c"),
    ]
    assert [entry.name for _, entry in read_collection(str(rows)).scores("t")] == ["7"]  # a title is searched too


def test_collections_that_cannot_be_searched(tmp_path: Path) -> None:
    wrong, empty, broken = tmp_path / "wrong.jsonl", tmp_path / "empty.jsonl", tmp_path / "folder"
    wrong.write_text('{"body": "x"}\n')
    empty.write_text("")
    broken.mkdir()
    (broken / "a.txt").write_bytes(b"\xff\xfe\xfa")
    for path, message in (
        (wrong, "has no text to search: its columns are body"),
        (empty, "has no texts to search|empty|no rows"),
        (broken, "a.txt cannot be read as a text file"),
    ):
        with pytest.raises(UserError, match=message):
            read_collection(str(path))
