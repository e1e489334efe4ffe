"""The disk use of a run: by hand, on a real run directory, and on a disk that is too small."""

import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.tiny import Whet
from whet.config.loops import LOOPS
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.experiments.disk_room import require_room
from whet.train.session import disk_space as module
from whet.train.session.disk_space import require_space, size
from whet.train.setup.disk_use import DiskUse, SavedSizes, disk_use, smaller

SIZES = SavedSizes(weights=400, moments=200, best=150)
ONE = 400 + 4 * 200  # a checkpoint with exact moments of AdamW


def config(*overrides: str) -> Any:
    fixed = ["steps=100", "save.every_steps=40", "save.rollouts_every_steps=10", "rollout.max_tokens=6"]
    return read_recipe("grpo-sorting", [*fixed, *overrides]).config


def test_the_bytes_of_an_online_run() -> None:
    found = config("save.keep=5")
    assert isinstance(found, LOOPS["online"])
    # Steps 40, 80 and 100, which are all there ever are; ten recorded steps of 64 × 8 completions of 6 tokens.
    rollouts = 10 * 64 * 8 * 6 * 20
    use = DiskUse(checkpoint=ONE, kept=3, at_once=3, best=150, bests=2, rollouts=rollouts)
    assert disk_use(found, SIZES) == use
    assert (use.total, use.peak) == (3 * ONE + 150 + rollouts, 3 * ONE + 2 * 150)
    assert disk_use(found, SIZES, done=70).rollouts == rollouts * 3 / 10


@pytest.mark.parametrize(
    ("overrides", "checkpoint", "at_once", "bests"),
    [
        (["save.keep=2"], ONE, 3, 2),  # the third is complete before the first is deleted
        (["save.keep=2", "save.delete_old=before"], ONE, 2, 2),
        (["save.keep=1"], ONE, 2, 2),
        (["save.keep=1", "save.delete_old=before"], ONE, 1, 2),
        (["save.keep=1", "save.every_steps=100"], ONE, 1, 2),
        (["save.keep=1", "eval.every_steps=0"], ONE, 2, 1),
        (["save.keep=1", "save.optimizer=bf16"], 400 + 2 * 200, 2, 2),
        (["save.keep=1", "save.optimizer=8bit"], 400 + 204, 2, 2),  # a scale of 4 bytes for 256: 3.125 bytes
        (["save.keep=1", "save.optimizer=none"], 400, 2, 2),
        (["save.keep=1", "save.optimizer=bf16", "optimizer.name=adamw_bf16"], 400 + 2 * 200, 2, 2),
        (["save.keep=1", "save.optimizer=bf16", "optimizer.name=adamw_8bit"], 400 + 200, 2, 2),
    ],
)
def test_what_the_keys_change(overrides: list[str], checkpoint: int, at_once: int, bests: int) -> None:
    found = disk_use(config(*overrides), SIZES)
    assert (found.checkpoint, found.at_once, found.bests) == (checkpoint, at_once, bests)


def test_the_peak_is_that_of_a_checkpoint_or_of_the_best_model() -> None:
    """They are not written at the same time."""
    use = DiskUse(checkpoint=30, kept=2, at_once=3, best=10, bests=2, rollouts=0)
    assert use.peak == 3 * 30 + 10
    assert DiskUse(checkpoint=30, kept=2, at_once=2, best=70, bests=2, rollouts=0).peak == 2 * 30 + 2 * 70


def test_keys_that_need_less() -> None:
    peaks = {keys: disk_use(other, SIZES).peak for keys, other in smaller(config("save.keep=2"), SIZES)}
    assert peaks == {
        "save.keep=1": 2 * ONE + 150,
        "save.optimizer=bf16": 3 * 800 + 150,
        "save.optimizer=8bit": 3 * 604 + 150,
        "save.optimizer=none": 3 * 400 + 150,
        "save.delete_old=before": 2 * ONE + 2 * 150,
        "save.keep=1 save.optimizer=none save.delete_old=before": 400 + 2 * 150,
    }
    done = config("save.keep=1", "save.optimizer=none", "save.delete_old=before")
    assert list(smaller(done, SIZES)) == []


def test_it_is_computed_without_torch() -> None:
    code = "import sys, whet.train.setup.disk_use; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=count))


@pytest.mark.parametrize(("left", "said"), [(-1, "refused"), (0, "noted"), (614_400 - 1, "noted"), (614_400, "fits")])
def test_a_disk_that_is_too_small(left: int, said: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(path=tmp_path)
    free(monkeypatch, 3 * ONE + 150 + left)  # rollouts take 614,400 bytes
    if said == "refused":
        with pytest.raises(UserError, match=r"needs 3\.75 kB on disk \(3 checkpoints of 1\.2 kB at a time"):
            require_space(run, config("save.keep=2"), SIZES, done=0)
        return
    notes = require_space(run, config("save.keep=2"), SIZES, done=0)
    assert notes[0].startswith(
        "disk: at most 618 kB: 3 checkpoints of 1.2 kB at a time, a best model of 0.15 kB (two while it is replaced), "
        "rollouts up to 614 kB; "
    )
    assert [("raise save.rollouts_every_steps" in note) for note in notes[1:]] == ([True] if said == "noted" else [])


@pytest.mark.parametrize(
    ("left", "offers", "absent"),
    [
        (3 * ONE, ["set save.keep=1 (2.55 kB), or set save.optimizer=bf16 (2.55 kB; a resumed run is"], "model.lora"),
        (
            1400,
            [
                "set save.optimizer=none (1.35 kB; a resumed run is then not bit-identical)",
                "set save.keep=1 save.optimizer=none save.delete_old=before (0.7 kB; a resumed run is then not "
                "bit-identical; a crash while a checkpoint is written leaves no checkpoint to resume from)",
            ],
            "save.keep=1 (",
        ),
        (100, ["train adapters, model.lora=16"], "set save"),
    ],
)
def test_a_refusal_offers_what_would_fit(
    left: int, offers: list[str], absent: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = SimpleNamespace(path=tmp_path)
    free(monkeypatch, left)
    recipe = config("save.keep=2")
    model = recipe.model.model_copy(update={"new": None, "path": "some/model"})
    recipe = recipe.model_copy(update={"model": model})
    with pytest.raises(UserError) as told:
        require_space(run, recipe, SIZES, done=0)
    assert all(offer in str(told.value) for offer in offers), told.value
    assert absent not in str(told.value)
    assert "free some, or write the run to another disk" in str(told.value)


def test_runs_of_an_experiment_stay_side_by_side(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs end with 2 · 30 + 10 each; the largest moment of a run, at last, is 3 · 30 + 10."""
    use = DiskUse(checkpoint=30_000, kept=2, at_once=3, best=10_000, bests=2, rollouts=5_000)
    notes: list[str] = []
    free(monkeypatch, 170_000)
    require_room([use, use], tmp_path, notes.append)
    assert notes == ["disk: 2 runs take at most 180 kB, rollouts up to 10 kB; 170 kB free"]
    free(monkeypatch, 169_999)
    with pytest.raises(UserError, match=r"2 runs need 170 kB on disk and .* has 170 kB free: .*lower save.keep"):
        require_room([use, use], tmp_path, notes.append)
    require_room([use], tmp_path, notes.append)  # which looks by itself
    require_room([None, None], tmp_path, notes.append)
    assert len(notes) == 1
    require_room([use, None, None], tmp_path, notes.append)
    assert "3 runs take at most 105 kB (without 2 whose size is not known yet)" in notes[1]


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "grpo-sorting", "--methods", "rloo,grpo", "--seeds", "2"],
        ["train", "rlhf-reviews"],
    ],
)
def test_an_experiment_that_does_not_fit_is_refused_as_a_whole(
    command: list[str], whet: Whet, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2, 1, 30_000_000))  # type: ignore[attr-defined]
    outcome = whet(*command, "--runs", tmp_path / "runs")
    assert outcome.code == 2, outcome.out
    assert " runs need " in outcome.err
    assert list((tmp_path / "runs").iterdir()) == []


def test_sizes_for_people() -> None:
    assert [size(count) for count in (12, 4_200, 7.19e6, 16.4e9, 2e12)] == [
        *("0.012 kB", "4.2 kB", "7.19 MB", "16.4 GB", "2 TB"),
    ]


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
    assert "kB free: free some, or write the run to another disk" in outcome.err
    assert list((tmp_path / "runs").iterdir()) == []
