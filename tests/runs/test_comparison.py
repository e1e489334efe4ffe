"""The directory of a comparison: where things are, and which directories are taken for one."""

import json
import re

import pytest

from whet.errors import RunFailed, UserError
from whet.runs.comparison import ComparisonDirectory
from whet.runs.directory import Run


def test_it_is_named_as_runs_are_and_never_twice(tmp_path):
    first, second = (ComparisonDirectory.create(tmp_path / "runs", "my recipe") for _ in range(2))
    assert re.fullmatch(r"\d{8}-\d{6}-compare-my-recipe", first.path.name)
    assert first.path != second.path
    assert first.run_path("grpo", 7) == first.path / "grpo" / "seed-7"


def test_what_may_be_opened(tmp_path):
    directory = ComparisonDirectory.open(tmp_path / "new")
    assert not directory.path.exists()  # wrong input must leave nothing behind
    assert directory.run("grpo", 0) is None
    Run.create(tmp_path, "x", "steps: 1\n", path=directory.run_path("grpo", 0)).close()
    again = ComparisonDirectory.open(tmp_path / "new")
    run = again.run("grpo", 0)
    assert run is not None
    assert run.config_yaml() == "steps: 1\n"
    assert not run.is_writer


def test_what_is_no_comparison_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no comparison"):
        ComparisonDirectory.open(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        ComparisonDirectory.open(tmp_path / "notes.txt")


def test_writing_and_that_what_cannot_be_said_in_json_is_null(tmp_path):
    directory = ComparisonDirectory.open(tmp_path / "c")
    directory.write(results={"step": float("inf")}, table="| a |\n", curves=b"\x89PNG")
    assert json.loads(directory.results_path.read_text()) == {"step": None}
    assert sorted(path.name for path in directory.path.iterdir()) == ["comparison.json", "comparison.md", "curves.png"]
    ComparisonDirectory.open(directory.path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot write the comparison"):
        ComparisonDirectory(tmp_path / "file" / "c").write(results={}, table="", curves=b"")


def test_an_unused_one_goes_and_a_used_one_stays(tmp_path):
    unused, used = (ComparisonDirectory.create(tmp_path, name) for name in ("a", "b"))
    (unused.path / "grpo").mkdir()
    Run.create(tmp_path, "x", "steps: 1\n", path=used.run_path("grpo", 0)).close()
    (used.path / "rloo").mkdir()
    unused.remove_if_unused()
    used.remove_if_unused()
    assert not unused.path.exists()
    assert used.run("grpo", 0) is not None
