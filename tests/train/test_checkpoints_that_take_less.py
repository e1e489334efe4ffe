"""Runs with rounded or no moments in their checkpoints: what they take, how they resume, and what is said of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.contracts.command import SUPERVISED, online
from tests.contracts.here import save_small
from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.config import OfflineConfig
from whet.config.parts import OptimizerConfig
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.models.half_precision import halve
from whet.recipe import dump, validate
from whet.runs.directory import RunDirectory
from whet.runs.logs import bytes_below
from whet.train.online import loop as online_loop
from whet.train.rows import loop as offline_loop
from whet.train.session import disk_space

STEPS, STOP = 5, 3
DTYPES = (torch.bfloat16, torch.float32)
SAVE = {"every_steps": 3, "keep": 2}
ROUNDED = (
    "lost: from step 4 on with moments of the optimizer as checkpoints round them (save.optimizer={}), so the run "
)
FRESH = (
    "lost: from step 4 on with fresh moments of the optimizer: checkpoints have none (save.optimizer=none), so the run "
)


class Listening(SilentProgress):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def train(recipe: dict[str, Any], path: Path, **save: Any) -> tuple[RunDirectory, list[str]]:
    """Trains, or goes on with, the run at `path`; returns it, and what was said."""
    config, progress = validate({**recipe, "save": {**SAVE, **save}}, where="test"), Listening()
    is_run = (path / "config.yaml").exists()
    with (
        RunDirectory.open(path) if is_run else RunDirectory.create(path.parent, "test", dump(config), path=path) as run
    ):
        loop: Any = offline_loop if isinstance(config, OfflineConfig) else online_loop
        loop.train(config, run, World.alone(), progress)
    return RunDirectory.open(path, is_writer=False), progress.notes


def test_master_weights_of_fp32_beside_bf16_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offloaded, a checkpoint holds 2 bytes of a matrix weight, 4 of its master weight, and two moments."""
    model, tokenizer = small_model()
    halve(model, trained=True)
    weights = {kind: sum(p.numel() for p in model.parameters() if p.dtype is kind) for kind in DTYPES}
    assert min(weights.values()) > 0
    saved = list(model.parameters())
    parts: Any = SimpleNamespace(policy=model, tokenizer=tokenizer, saved=saved, adapter=None, dtype=torch.bfloat16)
    found = {}
    for where in ("bf16", "offload"):
        config: Any = SimpleNamespace(optimizer=OptimizerConfig(master_weights=where))
        found[where] = disk_space.measured_sizes(config, parts, [(7, 3)])
    files = found["bf16"].best - 2 * sum(weights.values())
    assert found["bf16"].weights == 2 * weights[torch.bfloat16] + 4 * weights[torch.float32] + files + 7
    assert found["offload"].weights - found["bf16"].weights == 4 * weights[torch.bfloat16]
    assert found["offload"].moments == 2 * sum(weights.values()) + 3


def resumed(recipe: dict[str, Any], path: Path, **save: Any) -> tuple[RunDirectory, list[str]]:
    """A run that ends after STOP steps and is resumed."""
    train({**recipe, "steps": STOP}, path, **save)
    return train(recipe, path, **save)


def rewards(run: RunDirectory, metric: str) -> list[float]:
    return [row[metric] for row in run.metrics() if row["step"] > 0]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    place = tmp_path_factory.mktemp("recipes")
    small = save_small(place / "small")
    steps = {"steps": STEPS, "optimizer": {"lr": 1e-2}, "eval": {"every_steps": 0}}
    rollout = {"prompts": 2, "group": 4, "max_tokens": 6}
    made = {
        "grpo": online(small, **steps, rollout=rollout),
        "ppo": online(small, **steps, rollout=rollout, algorithm="ppo"),
        "lora": {**online(small, **steps, rollout=rollout), "model": {"path": str(small), "lora": {"rank": 2}}},
        "sft": {**SUPERVISED, **steps},
    }
    start, pairs = on_disk.saved_model(place / "model"), on_disk.pairs(place / "pairs.jsonl")
    for name, objective in (("dpo", "dpo"), ("reward model", "bradley_terry")):
        config = on_disk.config(start, pairs, objective, **steps)
        made[name] = config.model_dump(mode="json")
    return made


@pytest.mark.parametrize(
    ("name", "hows"),
    [
        ("ppo", ("exact", "bf16", "8bit", "none")),
        ("sft", ("exact", "bf16", "8bit", "none")),
        *((name, ("exact", "8bit")) for name in ("grpo", "lora", "dpo", "reward model")),
    ],
)
def test_every_loop_resumes_from_smaller_checkpoints(
    name: str, hows: tuple[str, ...], recipes: dict[str, Any], tmp_path: Path
) -> None:
    recipe = recipes[name]
    whole, _ = train(recipe, tmp_path / "whole")
    metric = "grad_norm"
    taken = {}
    for how in hows:
        run, said = resumed(recipe, tmp_path / how, optimizer=how)
        checkpoint = run.latest()
        assert checkpoint is not None
        assert checkpoint.step == STEPS
        files = checkpoint.path.glob("*.safetensors")
        taken[how] = sum(tensor.nbytes for file in files for tensor in load_file(file).values())
        told = [note for note in said if note.startswith("lost")]
        assert rewards(run, metric)[:STOP] == rewards(whole, metric)[:STOP]
        if how == "exact":
            assert told == []
            assert run.metrics() == whole.metrics()
            last = whole.path / "checkpoints" / checkpoint.path.name / "optimizer.safetensors"
            assert (checkpoint.path / "optimizer.safetensors").read_bytes() == last.read_bytes()
            continue
        expected = FRESH if how == "none" else ROUNDED.format(how)
        assert told == [f"{expected}is not bit for bit what it would have been"]
        assert (run.results() or {})["lost"] == [told[0].removeprefix("lost: ")]
        assert run.metrics() != whole.metrics()
    assert list(taken.values()) == sorted(set(taken.values()), reverse=True)


def test_a_critic_is_saved_as_the_policy_is(recipes: dict[str, Any], tmp_path: Path) -> None:
    run, _ = train(recipes["ppo"], tmp_path / "run", optimizer="8bit")
    checkpoint = run.latest()
    assert checkpoint is not None
    critic = load_file(checkpoint.path / "critic.safetensors")
    rounded = {f"{moment}.{part}" for moment in ("exp_avg", "exp_avg_sq") for part in ("8bit", "scales")}
    assert {key.partition("/")[0] for key in critic} == {"weight", "step", "exp_avg", "exp_avg_sq", *rounded}
    assert {str(critic[key].dtype) for key in critic if key.startswith("weight/")} == {"torch.float32"}
    assert {str(critic[key].dtype) for key in critic if key.startswith("exp_avg_sq.8bit")} == {"torch.uint8"}


def test_moments_that_are_in_bf16_already_resume_bit_for_bit(recipes: dict[str, Any], tmp_path: Path) -> None:
    recipe = {**recipes["sft"], "optimizer": {"lr": 1e-2, "name": "adamw_bf16"}}
    whole, _ = train(recipe, tmp_path / "whole")
    run, said = resumed(recipe, tmp_path / "run", optimizer="bf16")
    assert not [note for note in said if note.startswith("lost")]
    assert run.metrics() == whole.metrics()


def test_a_resumed_run_may_change_how_it_saves(recipes: dict[str, Any], tmp_path: Path) -> None:
    train({**recipes["sft"], "steps": STOP}, tmp_path / "run", optimizer="8bit")
    run, said = train(recipes["sft"], tmp_path / "run")
    checkpoint = run.latest()
    assert checkpoint is not None
    assert "optimizer" not in checkpoint.state
    assert [note for note in said if note.startswith("lost")] == [
        f"{ROUNDED.format('8bit')}is not bit for bit what it would have been"
    ]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "exact") for name in ("grpo", "ppo", "lora", "sft", "reward model")),
        *(("ppo", how) for how in ("bf16", "8bit", "none")),
    ],
)
def test_what_is_said_before_the_start_is_what_is_written(
    name: str, how: str, recipes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    original = disk_space.disk_use
    monkeypatch.setattr(disk_space, "disk_use", lambda *a, **k: found.append(original(*a, **k)) or found[-1])
    run, said = train({**recipes[name], "steps": 2}, tmp_path / "run", optimizer=how, every_steps=1)
    checkpoint = run.latest()
    assert checkpoint is not None
    best = run.best_model()
    assert best is not None
    # A checkpoint also has state.json, manifest.json and the headers of safetensors files.
    assert bytes_below(checkpoint.path) == pytest.approx(found[0].checkpoint, abs=20_000, rel=0.02)
    assert bytes_below(best) == pytest.approx(found[0].best, abs=8_000, rel=0.02)
    (line,) = [note for note in said if note.startswith("disk: at most ")]
    assert f"2 checkpoints of {disk_space.size(found[0].checkpoint)} at a time" in line
    assert line.endswith(" free")


def free(monkeypatch: pytest.MonkeyPatch, count: float) -> None:
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda _: SimpleNamespace(free=int(count)))


def test_a_resumed_run_needs_room_only_for_what_is_not_there(
    recipes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = train({**recipes["sft"], "steps": STOP}, tmp_path / "run", every_steps=1)
    checkpoint = run.latest()
    assert checkpoint is not None
    one = bytes_below(checkpoint.path)
    free(monkeypatch, 0.5 * one)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(
        UserError, match=r"set save.delete_old=before .*a crash while a checkpoint is written leaves 1 older"
    ):
        train(recipes["sft"], tmp_path / "run", every_steps=1)
    assert {path: path.read_bytes() for path in before} == before
    free(monkeypatch, 1.2 * one)  # three at a time, of which two are there
    _, said = train(recipes["sft"], tmp_path / "run", every_steps=1)
    assert any(note.startswith("disk: at most") and " of it there already, " in note for note in said)


def test_a_run_that_deletes_first_says_what_a_crash_costs(recipes: dict[str, Any], tmp_path: Path) -> None:
    run, said = train(recipes["sft"], tmp_path / "run", delete_old="before", keep=1, every_steps=1)
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-000005"]
    told = "note: save.delete_old=before: a crash while a checkpoint is written leaves no checkpoint to resume from"
    assert told in said
    _, said = train({**recipes["sft"], "steps": STOP}, tmp_path / "other", delete_old="before", every_steps=1)
    assert told.replace("no checkpoint", "1 older checkpoint") in said


def test_a_crash_between_deleting_and_writing(
    recipes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one checkpoint nothing is left to resume from, which is said; with two the older one is resumed."""
    from whet.train.session import checkpoint_files

    recipe = {**recipes["sft"], "eval": {"every_steps": 2, "examples": 4, "max_tokens": 6}}
    original, calls = checkpoint_files.write_items, []

    def full(path: Path, *given: Any) -> None:
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        original(path, *given)

    for keep, there in ((1, []), (2, ["step-000003"])):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_files, "write_items", full)
            with pytest.raises(RunFailed, match=r"cannot write checkpoint step-000004.*No space left"):
                train(recipe, tmp_path / f"run-{keep}", delete_old="before", keep=keep, every_steps=1)
        directory = tmp_path / f"run-{keep}"
        assert [path.name for path in (directory / "checkpoints").iterdir()] == there
        if there:
            run, _ = train(recipe, directory, delete_old="before", keep=keep, every_steps=1)
            assert run.finished
            continue
        lost = r"no checkpoint any more \(save.delete_old=before deletes.*new run with model=.* best model is intact"
        with pytest.raises(UserError, match=lost):
            train(recipe, directory, delete_old="before", keep=keep, every_steps=1)


def test_by_default_a_full_disk_costs_no_checkpoint(
    recipes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.train.session import checkpoint_files

    def full(path: Path, *given: Any) -> None:
        raise OSError(28, "No space left on device")

    train({**recipes["sft"], "steps": STOP}, tmp_path / "run", keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "write_items", full)
        with pytest.raises(RunFailed, match=r"the last good checkpoint is .*step-000003"):
            train(recipes["sft"], tmp_path / "run", keep=1)
    run, _ = train(recipes["sft"], tmp_path / "run", keep=1)
    assert run.finished
