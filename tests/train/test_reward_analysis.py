"""reward_model.json describes the model that a run leaves to others: its best one, however the run ended."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.config import OfflineConfig
from whet.errors import RunFailed
from whet.models.download.model_hub import resolve_model
from whet.models.reward.scoring import load_scorer
from whet.recipe import Recipe
from whet.report.run.reward_figures import reward_figures
from whet.runs.directory import RunDirectory
from whet.train.rows import reward_training as rewarding
from whet.train.start import resume_run, start_run

CPU = torch.device("cpu")
STEPS = 8
SEED = 0


class Interrupting(SilentProgress):
    """Ctrl-C just after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def step(self, step: int, metrics: Any, timings: Any) -> None:
        if step == self.after:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def config(tmp_path: Path) -> OfflineConfig:
    """Steps so large that the model soon gets worse: the best one is not the last one."""
    on_disk.saved_model(tmp_path / "start")
    on_disk.pairs(tmp_path / "pairs.jsonl")
    return on_disk.config(
        tmp_path / "start",
        tmp_path / "pairs.jsonl",
        "bradley_terry",
        steps=STEPS,
        seed=SEED,
        optimizer={"lr": 0.1, "schedule": "constant"},
        eval={"every_steps": 1, "examples": 12},
        save={"every_steps": 2},
    )


def begin(config: OfflineConfig, tmp_path: Path, progress: SilentProgress) -> Path:
    return start_run(Recipe(name="rm", config=config, written={}), tmp_path, lambda *_: progress, path=tmp_path / "run")


def margins(config: OfflineConfig, model: Path) -> list[float]:
    """What a model says of the held-out pairs, from its files alone."""
    _, trainer = on_disk.built(config)
    pairs = [one.data for one in trainer.evaluation[""]]  # type: ignore[attr-defined]
    scorer = load_scorer(model, CPU)
    prompts = [pair.prompt for pair in pairs]
    chosen = scorer.score(prompts, [pair.chosen for pair in pairs])
    rejected = scorer.score(prompts, [pair.rejected for pair in pairs])
    return [a - b for a, b in zip(chosen, rejected, strict=True)]


def check_analysis(config: OfflineConfig, path: Path) -> dict[str, Any]:
    """It is that of the model that the run's name stands for."""
    run = RunDirectory.open(path, is_writer=False)
    analysis: dict[str, Any] = json.loads((path / "reward_model.json").read_text())
    info = run.best_info()
    assert info is not None
    assert analysis["step"] == info["step"]
    assert analysis["accuracy"]["mean"] == pytest.approx(info["value"])
    assert analysis["margins"] == pytest.approx(margins(config, resolve_model(str(path))), abs=1e-4)
    assert (path / "reward_model.png").read_bytes().startswith(b"\x89PNG")
    return analysis


def test_the_best_model_is_analysed_and_not_the_last(config: OfflineConfig, tmp_path: Path) -> None:
    path = begin(config, tmp_path, SilentProgress())
    analysis = check_analysis(config, path)
    assert analysis["step"] < STEPS
    latest = RunDirectory.open(path, is_writer=False).latest()
    assert latest is not None
    last = margins(config, latest.path / "model")
    assert max(abs(a - b) for a, b in zip(analysis["margins"], last, strict=True)) > 0.1


def test_an_interrupted_run_is_analysed_and_a_resumed_one_again(config: OfflineConfig, tmp_path: Path) -> None:
    whole = begin(config, tmp_path / "whole", SilentProgress())
    with pytest.raises(KeyboardInterrupt):
        begin(config, tmp_path, Interrupting(1))
    path = tmp_path / "run"
    assert not RunDirectory.open(path, is_writer=False).finished
    assert check_analysis(config, path)["step"] <= 2  # the step in which Ctrl-C came is completed
    resume_run(path, [], lambda *_: SilentProgress())
    check_analysis(config, path)
    assert (path / "reward_model.json").read_bytes() == (whole / "reward_model.json").read_bytes()


def ctrl_c_while_drawing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many signals in the middle of the next analysis, none in those after it."""
    left = [times]

    def draw(*given: Any, **options: Any) -> bytes:
        while left[0]:
            left[0] -= 1
            os.kill(os.getpid(), signal.SIGINT)
        return reward_figures(*given, **options)

    monkeypatch.setattr(rewarding, "reward_figures", draw)


def test_a_run_is_not_finished_before_it_is_analysed(
    config: OfflineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would make up for an analysis that was interrupted."""
    whole = begin(config, tmp_path / "whole", SilentProgress())
    ctrl_c_while_drawing(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        begin(config, tmp_path, SilentProgress())
    path = tmp_path / "run"
    stopped = RunDirectory.open(path, is_writer=False)
    assert not (path / "reward_model.json").exists()
    assert not stopped.finished
    resume_run(path, [], lambda *_: SilentProgress())
    check_analysis(config, path)
    assert RunDirectory.open(path, is_writer=False).finished
    for name in ("reward_model.json", "metrics.jsonl"):
        assert (path / name).read_bytes() == (whole / name).read_bytes()


def test_one_ctrl_c_lets_the_analysis_end(
    config: OfflineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it lets a step end; after the last one nothing is left to stop."""
    ctrl_c_while_drawing(monkeypatch, 1)
    path = begin(config, tmp_path, SilentProgress())
    check_analysis(config, path)
    assert RunDirectory.open(path, is_writer=False).finished


def test_going_on_takes_the_old_analysis_away(config: OfflineConfig, tmp_path: Path) -> None:
    """Killed before its end, a resumed run would else leave one of another model."""
    with pytest.raises(KeyboardInterrupt):
        begin(config, tmp_path, Interrupting(1))
    path = tmp_path / "run"
    with RunDirectory.open(path) as run:
        run.rewind(1)
    assert not (path / "reward_model.json").exists()
    assert not (path / "reward_model.png").exists()


def test_without_its_best_model_nothing_is_analysed(config: OfflineConfig, tmp_path: Path) -> None:
    _, trainer = on_disk.built(config)
    with (
        RunDirectory.create(tmp_path, "rm", "loop: offline\n") as run,
        pytest.raises(RunFailed, match="lost its best"),
    ):
        trainer.conclude(run, lambda _: None)  # type: ignore[attr-defined]
