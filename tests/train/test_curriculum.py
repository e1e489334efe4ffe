"""A curriculum: promotion by hand, its state in checkpoints, and resuming bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.contracts.command import SUPERVISED, write_recipe
from whet.errors import UserError
from whet.runs.directory import RunDirectory
from whet.tasks.check import check_task
from whet.tasks.procedural import Sorting
from whet.tasks.selection.curriculum import LevelledTask

RECIPE: dict[str, Any] = {
    "steps": 6,
    "seed": 5,
    "model": SUPERVISED["model"],
    "task": {"name": "sorting", "level": 1},
    "curriculum": {"to_level": 3, "promote_at": 0.01, "window": 8},
    "cold_start": {"steps": 40, "batch_size": 64, "lr": 1e-2},
    "algorithm": "grpo",
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 6},
    "optimizer": {"lr": 1e-3},
    "eval": {"every_steps": 6, "examples": 9, "max_tokens": 6},
    "save": {"every_steps": 3, "keep": 2},
    "track": [],
    "device": "cpu",
}


def levelled(**options: Any) -> LevelledTask:
    given: dict[str, Any] = {"to_level": 3, "promote_at": 0.75, "window": 4, **options}
    return LevelledTask("sorting", {"level": 1}, **given)


def rollouts(*right: int) -> list[tuple[str, bool]]:
    return [("level-1/x", bool(one)) for one in right]


def test_the_level_rises_with_the_pass_rate_of_its_own_rollouts() -> None:
    task = levelled()
    assert task.learn(rollouts(1, 1, 1)) == {"curriculum/level": 1, "curriculum/pass_rate": 1}
    assert task.level == 1  # a window is four rollouts
    assert task.learn(rollouts(0, 0))["curriculum/pass_rate"] == 0.5  # 1 1 0 0
    assert task.learn(rollouts(1, 1))["curriculum/pass_rate"] == 0.5  # 0 0 1 1
    assert task.learn(rollouts(1))["curriculum/pass_rate"] == 0.75  # 0 1 1 1
    assert task.level == 2
    assert task.learn(rollouts(1, 1, 1)) == {"curriculum/level": 2, "curriculum/pass_rate": 1}  # counted anew
    assert task.level == 2
    for _ in range(3):
        task.learn(rollouts(1, 1, 1, 1))
    assert task.level == 3  # the last one


def test_draws_are_of_the_level_and_all_levels_are_held_out() -> None:
    task = levelled()
    check_task(task)
    task.learn(rollouts(1, 1, 1, 1))
    drawn, own = task.draw(5, seed=(0, 7)), Sorting(level=2).draw(5, seed=(0, 7))
    assert [one.prompt for one in drawn] == [one.prompt for one in own]
    assert {one.part for one in drawn} == {"level-2"}
    assert [one.part for one in task.held_out(6)] == ["level-1", "level-2", "level-3"] * 2
    again = levelled()
    again.restore(task.state())
    assert again.draw(5, seed=(0, 7)) == drawn
    assert again.state() == task.state()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reviews", {}, "task reviews is none"),
        ("nowhere.py:Task", {}, r"task nowhere\.py:Task is none"),
        ("sorting", {"level": 3}, "begins at level 3: raise to_level"),
    ],
)
def test_what_has_no_levels_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LevelledTask(name, options, to_level=3, promote_at=0.5, window=4)


def train(whet: Whet, tmp_path: Path, name: str, **changes: Any) -> RunDirectory:
    recipe = write_recipe(tmp_path / f"{name}.yaml", {**RECIPE, **changes})
    result = whet("train", recipe, "--runs", tmp_path / name)
    assert result.code == 0, result.err
    (path,) = (tmp_path / name).iterdir()
    return RunDirectory.open(path, is_writer=False)


def test_a_run_climbs_and_goes_on_bit_for_bit(whet: Whet, tmp_path: Path) -> None:
    whole = train(whet, tmp_path, "whole")
    levels = [row["curriculum/level"] for row in whole.metrics()[1:]]
    assert levels[0] == 1
    assert levels == sorted(levels)
    assert max(levels) > 1
    assert {"eval/level-1/accuracy", "eval/level-2/accuracy", "eval/level-3/accuracy"} <= whole.metrics()[-1].keys()
    half = train(whet, tmp_path, "half", steps=3)
    resumed = whet("train", "--resume", half.path, "steps=6")
    assert resumed.code == 0, resumed.err
    ours, theirs = (RunDirectory.open(one.path, is_writer=False) for one in (half, whole))
    assert [row["curriculum/level"] for row in ours.metrics()[1:]] == levels
    mine, other = (one.latest() for one in (ours, theirs))
    assert mine is not None
    assert other is not None
    assert mine.state["kept"]["task"] == other.state["kept"]["task"]
    assert (mine.path / "model" / "model.safetensors").read_bytes() == (
        other.path / "model" / "model.safetensors"
    ).read_bytes()


def test_a_curriculum_without_levels_is_refused_by_the_command(whet: Whet, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "r.yaml", {**RECIPE, "task": {"name": "reviews"}})
    assert "curriculum is for packaged tasks with a level" in refused(whet, "train", recipe)
