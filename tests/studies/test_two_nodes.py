"""The page on a lost node says what the study found."""

import json
from pathlib import Path

from studies.two_nodes import run

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_says_what_was_found() -> None:
    found = json.loads((ROOT / "studies/two_nodes/results.json").read_text("utf-8"))
    page = (ROOT / "docs/distributed.md").read_text("utf-8")
    assert found["faults"].keys() == run.FAULTS.keys()
    assert found["command"] == " ".join(["whet", "train", run.RECIPE, *run.KEYS])
    for fault, one in found["faults"].items():
        assert (one["identical"], one["exit_code"], one["at_step"]) == (True, 1, run.LOST_AT)
        row = next(line for line in page.splitlines() if line.startswith(f"| {fault} |"))
        seconds, said = row.split("|")[2:4]
        assert seconds.strip() == f"{one['seconds_until_noticed']:.1f} s"
        assert said.strip() in one["said"]


def test_contents_change_with_a_byte(tmp_path: Path) -> None:
    (tmp_path / "best_model").mkdir()
    (tmp_path / "metrics.jsonl").write_text("1")
    (tmp_path / "best_model" / "w").write_text("1")
    before = run.contents(tmp_path)
    assert before.keys() == {"metrics.jsonl", "best_model/w"}
    (tmp_path / "best_model" / "w").write_text("2")
    assert run.contents(tmp_path) != before
