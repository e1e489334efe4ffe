"""The directory of a pipeline: where its runs are, that only one process writes it, and that it may be moved."""

import os
from pathlib import Path

import pytest

from whet.errors import UserError
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import PipelineDirectory, is_pipeline, portable
from whet.runs.layout import recipe_of


def begun(tmp_path: Path) -> PipelineDirectory:
    """A pipeline with one finished stage."""
    directory = PipelineDirectory.create(tmp_path, "my pipeline")
    with (
        directory.writing("loop: pipeline\n"),
        RunDirectory.create(tmp_path, "sft", "a: 1\n", path=directory.stage_path("sft")),
    ):
        pass
    return directory


def test_where_everything_is(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    assert directory.path.parent == tmp_path
    assert directory.path.name.endswith("-my-pipeline")
    assert directory.recipe == "my-pipeline"
    assert directory.stage_path("sft") == directory.path / "stages" / "sft"
    assert directory.method_path("ppo", 3) == directory.path / "methods" / "ppo" / "seed-3"
    assert directory.comparison_path == directory.path / "comparison"
    assert directory.config_yaml() == "loop: pipeline\n"


def test_runs_are_called_by_their_stage_or_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = begun(tmp_path)
    assert RunDirectory.open(directory.stage_path("sft")).recipe == "sft"
    with RunDirectory.create(tmp_path, "ppo", "a: 1\n", path=directory.method_path("ppo", 12)) as run:
        assert run.recipe == "ppo"
    monkeypatch.chdir(directory.method_path("ppo", 12).parent)
    assert recipe_of(Path("seed-12")) == "ppo"
    assert recipe_of(Path("20260101-120000-seed-a")) == "seed-a"


def test_a_pipeline_is_not_taken_for_a_run(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    assert is_pipeline(directory.path)
    assert not is_pipeline(directory.stage_path("sft"))
    with pytest.raises(UserError, match="is a pipeline of several runs; name one of them"):
        RunDirectory.open(directory.path)
    with pytest.raises(UserError, match="is not the directory of a pipeline"):
        PipelineDirectory.open(directory.stage_path("sft"))


def test_two_processes_cannot_go_on_with_one_pipeline(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    with directory.writing("loop: pipeline\n"):
        with pytest.raises(UserError, match=f"is being written by process {os.getpid()}"), directory.writing("x: 1\n"):
            pass
        assert directory.config_yaml() == "loop: pipeline\n"  # the one that was refused changed nothing
    with directory.writing("x: 1\n"):
        pass
    assert directory.config_yaml() == "x: 1\n"


def test_only_an_unused_pipeline_is_removed(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    directory.remove_if_unused()
    assert directory.stage_path("sft").is_dir()
    fresh = PipelineDirectory.create(tmp_path, "fresh")
    with fresh.writing("loop: pipeline\n"):
        fresh.method_path("ppo", 0).parent.mkdir(parents=True)
    fresh.remove_if_unused()
    assert not fresh.path.exists()


def test_an_exact_place_is_new_empty_or_a_pipeline(tmp_path: Path) -> None:
    assert PipelineDirectory.at(tmp_path / "new").path == tmp_path / "new"
    directory = begun(tmp_path)
    assert PipelineDirectory.at(directory.path) == directory
    with pytest.raises(UserError, match="is not empty and holds no pipeline"):
        PipelineDirectory.at(directory.stage_path("sft"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a directory"):
        PipelineDirectory.at(tmp_path / "file")


def test_a_path_to_a_stage_is_the_same_wherever_the_pipeline_lies() -> None:
    assert portable("/here/stages/sft") == portable("/there/runs/stages/sft") == "@sft"
    assert portable("/here/stages/sft/best_model") == "@sft/best_model"
    assert portable("/here/stages/sft") != portable("/here/stages/other")
    assert portable("HuggingFaceTB/SmolLM2") == "HuggingFaceTB/SmolLM2"
