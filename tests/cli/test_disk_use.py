"""The disk use of a run: by hand, on a real run directory, and on a disk that is too small."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from tests.cli.tiny import Whet
from whet.config.loops import LOOPS
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.setup import disk_use as module
from whet.train.setup.disk_use import DiskUse, disk_use, require_space

USE = DiskUse(checkpoint=30, kept=2, best=10, rollouts=100)


def test_the_bytes_of_an_online_run() -> None:
    config = read_recipe(
        "grpo-sorting",
        ["steps=100", "save.every_steps=40", "save.keep=5", "save.rollouts_every_steps=10", "rollout.max_tokens=6"],
    ).config
    assert isinstance(config, LOOPS["online"])
    found = disk_use(config, weights=400, state=800, others=30, dtype=torch.bfloat16)  # type: ignore[arg-type]
    # Steps 40, 80 and 100; half of fp32; ten recorded steps of 64 × 8 completions of 6 tokens.
    assert found == DiskUse(checkpoint=1230, kept=3, best=200, rollouts=10 * 64 * 8 * 6 * 20)
    assert (USE.total, USE.peak) == (2 * 30 + 10 + 100, 3 * 30 + 2 * 10)


@pytest.mark.parametrize(("free", "said"), [(109, "refused"), (110, "noted"), (209, "noted"), (210, "fits")])
def test_a_disk_that_is_too_small(free: int, said: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    notes: list[str] = []
    if said == "refused":
        with pytest.raises(UserError, match=r"needs 1\.1e-07 GB on disk .* has 1\.09e-07 GB free: .*lower save\.keep"):
            require_space(tmp_path, USE, notes.append)
    else:
        require_space(tmp_path, USE, notes.append)
        assert [("raise save.rollouts_every_steps" in note) for note in notes] == ([True] if said == "noted" else [])


def test_explain_states_what_a_run_then_writes(whet: Whet, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path / "runs"))
    overrides = [
        "steps=2",
        "save.every_steps=1",
        "save.keep=1",
        "track=[]",
        "model.new.width=32",
        "eval.examples=4",
        "rollout.prompts=2",
    ]
    config = read_recipe("ppo-sorting", overrides).config
    shown = whet("explain", "ppo-sorting", *overrides).out
    assert whet("train", "ppo-sorting", *overrides).code == 0
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.open(path, is_writer=False)
    assert config.save.keep == 1
    checkpoint, best = run.latest(), run.best_model()
    assert checkpoint is not None
    assert best is not None
    written = [sum(file.stat().st_size for file in place.rglob("*.safetensors")) for place in (checkpoint.path, best)]
    from whet.train.explain.explanation import explain

    model = explain(read_recipe("ppo-sorting", overrides)).model
    assert model is not None
    assert [model.disk.checkpoint, model.disk.best] == pytest.approx(written, rel=0.1)
    assert f"1 × {model.disk.checkpoint / 1000:.1f} kB" in shown
    assert "at most about" in shown


def test_a_run_that_does_not_fit_is_refused_before_it_trains_and_leaves_nothing(
    whet: Whet, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2, 1, 1))  # type: ignore[attr-defined]
    outcome = whet("train", "grpo-sorting", "steps=1", "track=[]")
    assert outcome.code == 2
    assert "GB free: free some, lower save.keep" in outcome.err
    assert list((tmp_path / "runs").iterdir()) == []
