"""The directory of a comparison: where things are, and which directories are taken for one."""

import json
import re

import pytest

from whet.errors import RunFailed, UserError
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory, is_comparison


def test_it_is_named_as_runs_are_and_never_twice(tmp_path):
    first, second = (ComparisonDirectory.create(tmp_path / "runs", "my recipe") for _ in range(2))
    assert re.fullmatch(r"\d{8}-\d{6}-compare-my-recipe", first.path.name)
    assert first.path != second.path
    assert first.run_path("grpo", 7) == first.path / "grpo" / "seed-7"


def test_what_may_be_opened(tmp_path):
    directory = ComparisonDirectory.open(tmp_path / "new")
    assert not directory.path.exists()  # wrong input must leave nothing behind
    assert directory.run("grpo", 0) is None
    RunDirectory.create(tmp_path, "x", "steps: 1\n", path=directory.run_path("grpo", 0)).close()
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


def test_what_is_written_is_read(tmp_path):
    directory = ComparisonDirectory(tmp_path / "comparison")
    with pytest.raises(UserError, match=r"holds no comparison \(no comparison.json\)"):
        directory.results()
    directory.write_results({"step": float("inf")})
    directory.write_samples("ppo: odd/name", [{"text": "x"}, {"text": "y"}])
    directory.write_report(page="<p>", table="| a\x1b |\n", pictures={"overview": b"\x89PNG"})
    assert directory.results() == {"format": 3, "step": None}  # JSON has no infinity
    assert directory.samples("ppo: odd/name") == [{"text": "x"}, {"text": "y"}]
    assert directory.samples("dpo") == []
    assert directory.table_path.read_text() == "| a\\x1b |\n"  # a terminal shows it
    assert sorted(path.name for path in directory.path.iterdir()) == [
        *("comparison.html", "comparison.json", "comparison.md", "overview.png", "samples"),
    ]
    ComparisonDirectory.open(directory.path)


def test_another_format_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "comparison.json").write_text(json.dumps({"recipe": "toy"}))
    assert is_comparison(tmp_path)
    with pytest.raises(UserError, match="no comparison of format 3, the only one that is read here: make it again"):
        ComparisonDirectory(tmp_path).results()


def test_the_results_of_a_run_are_no_comparison(tmp_path):
    for name in ("final_results.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    assert not is_comparison(tmp_path)


def test_a_place_that_cannot_be_written_fails_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot write"):
        ComparisonDirectory(tmp_path / "file").write_results({})
    with pytest.raises(RunFailed, match="cannot write"):
        ComparisonDirectory(tmp_path / "file").write_samples("a", [])


def test_an_unused_one_goes_and_a_used_one_stays(tmp_path):
    unused, used = (ComparisonDirectory.create(tmp_path, name) for name in ("a", "b"))
    (unused.path / "grpo").mkdir()
    RunDirectory.create(tmp_path, "x", "steps: 1\n", path=used.run_path("grpo", 0)).close()
    (used.path / "rloo").mkdir()
    unused.remove_if_unused()
    used.remove_if_unused()
    assert not unused.path.exists()
    assert used.run("grpo", 0) is not None
