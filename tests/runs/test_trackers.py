"""TensorBoard is read back with its own reader; Weights & Biases is a small stand-in that keeps what it is told."""

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from whet.errors import UserError
from whet.runs.directory import RunDirectory


class FakeRun:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []
    module = ModuleType("wandb")

    def init(**arguments: Any) -> FakeRun:
        runs.append(FakeRun(**arguments))
        return runs[-1]

    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return runs


def tensorboard_scalars(run: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_a_resumed_run_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["tensorboard"], {}, first_step=1)
    for step in range(1, 7):
        run.log(step, {"reward": float(step), "kl": math.nan})
    run.close()  # steps 4 to 6 are lost: the last checkpoint is that of step 3
    resumed = RunDirectory.open(run.path)
    resumed.rewind(3)
    resumed.track(["tensorboard"], {}, first_step=4)
    for step in range(4, 8):
        resumed.log(step, {"reward": step + 0.5})
    resumed.close()
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert tensorboard_scalars(run.path, "reward") == expected


def test_what_a_checkpoint_saw_is_on_disk_in_tensorboard_too(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["tensorboard"], {}, first_step=1)
    run.log(1, {"reward": 0.25})
    run.save(1, lambda directory: None, {}, keep=1)
    assert tensorboard_scalars(run.path, "reward") == [(1, 0.25)]  # before close: a kill now loses nothing
    run.close()


def test_one_wandb_run_for_all_resumes(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["wandb"], {"steps": 3}, first_step=1)
    run.log(1, {"reward": 0.5, "kl": math.inf})
    run.close()
    resumed = RunDirectory.open(run.path)
    resumed.track(["wandb"], {"steps": 3}, first_step=2)
    resumed.log(2, {"reward": 0.75})
    resumed.close()
    first, second = wandb_runs
    assert first.arguments["id"] == second.arguments["id"] != ""
    assert first.arguments["resume"] == "allow"
    assert first.arguments["project"] == "whet"
    assert first.arguments["mode"] is None
    assert first.arguments["config"] == {"steps": 3}
    assert first.logged == [(1, {"reward": 0.5})]  # a number that is not finite is not shown
    assert second.logged == [(2, {"reward": 0.75})]
    assert first.finished
    assert second.finished


def test_wandb_listens_to_its_environment(
    tmp_path: Path, wandb_runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "towers")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["tensorboard", "wandb", "wandb"], {}, first_step=1)
    assert [(made.arguments["project"], made.arguments["mode"]) for made in wandb_runs] == [("towers", "offline")]


def test_wandb_missing_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # makes the import fail, installed or not
    with RunDirectory.create(tmp_path, "r", "") as run, pytest.raises(UserError, match="pip install wandb"):
        run.track(["wandb"], {}, first_step=1)


def test_other_ranks_track_nothing(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        other = RunDirectory.open(run.path, is_writer=False)
        other.track(["tensorboard", "wandb"], {}, first_step=1)
        other.log(1, {"reward": 1.0})
    assert wandb_runs == []
    assert not (run.path / "tensorboard").exists()
