"""`whet train`: what a finished run leaves, and what is said when it cannot begin, go on or write."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.refusal import RECIPE, one_line, refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from tests.contracts.command import Zygote

SMALL_FILE = 16_000  # bytes: more than a checkpoint of the tiny model has in one file, less than the log of 100 steps


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def stopped(tmp_path: Path, finished: Path) -> Path:
    """A run that was killed after its first step."""
    run = Path(shutil.copytree(finished, tmp_path / finished.name))
    (run / "final_results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    return run


def test_a_run_leaves_what_the_documentation_promises(whet: Whet, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    result = whet("train", recipe, "algorithm.clip.high=0.28", "--runs", tmp_path / "runs")
    (run,) = (tmp_path / "runs").iterdir()
    assert (result.code, result.out) == (0, f"{run}\n")
    lines = result.err.splitlines()
    assert lines[0].startswith("note: algorithm.clip.high has no effect here: one update per rollout")
    assert lines[1] == f"run: {run}"
    assert lines[-1] == f"report: {run / 'report.html'}"
    assert re.fullmatch(r"\d{8}-\d{6}-tiny", run.name)
    assert "high: 0.28" in (run / "config.yaml").read_text()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert json.loads((run / "final_results.json").read_text())["steps"] == 2
    assert whet("eval", run, "--examples", 3).code == 0


def test_a_run_is_named_by_the_environment_too(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path / "elsewhere"))
    assert whet("train", write_recipe(tmp_path)).code == 0
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_a_stopped_run_goes_on_to_the_same_end(whet: Whet, stopped: Path, finished: Path) -> None:
    result = whet("train", stopped, "--resume")
    assert result.code == 0, result.err
    assert "resumed after step 1" in result.err
    for name in ("metrics.jsonl", "best_model/model.safetensors", "checkpoints/step-000002/model/model.safetensors"):
        assert (stopped / name).read_bytes() == (finished / name).read_bytes()


def test_runs_that_cannot_be_resumed(whet: Whet, finished: Path, stopped: Path, tmp_path: Path) -> None:
    assert refused(whet, "train", finished, "--resume") == (
        f"{finished} is finished; to train for longer: whet train {finished} --resume steps=4, or start a new run with "
        f"model={finished}"
    )
    assert "is not a run directory (no config.yaml)" in refused(whet, "train", tmp_path, "--resume")
    assert "is not a run directory" in refused(whet, "train", tmp_path / "nowhere", "--resume")
    assert "a resumed run keeps its config" in refused(whet, "train", stopped, "--resume", "seed=9")
    (stopped / "config.yaml").write_text("steps: [")
    assert "not valid YAML" in refused(whet, "train", stopped, "--resume")
    (stopped / "config.yaml").write_bytes(b"\xff\xfe")
    assert "config.yaml" in refused(whet, "train", stopped, "--resume")
    assert not (stopped / "final_results.json").exists()


def test_resuming_with_other_weights_than_the_run_began_with(whet: Whet, tmp_path: Path, finished: Path) -> None:
    # Without its manifest, as a model of anybody's.
    plain = shutil.ignore_patterns("manifest.json")
    model = Path(shutil.copytree(finished / "best_model", tmp_path / "model", ignore=plain))
    run = train_tiny(tmp_path, f"model={{path: {model}}}")
    (run / "final_results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    weights = load_file(model / "model.safetensors")
    name = sorted(weights)[0]
    save_file({**weights, name: weights[name] + 1e-3}, model / "model.safetensors", metadata={"format": "pt"})
    message = refused(whet, "train", run, "--resume")
    assert "the run began with other weights" in message
    assert "restore the original model" in message
    assert str(run / "checkpoints" / "step-000001") in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_changes_are_accepted_of_runs_that_go_on(whet: Whet, tmp_path: Path) -> None:
    assert "--accept-changes is for a resumed run: add --resume" in refused(
        whet, "train", write_recipe(tmp_path), "--accept-changes"
    )
    reward = tmp_path / "reward.py"
    reward.write_text("def short(completions, **columns):\n    return [-float(len(text)) for text in completions]\n")
    run = train_tiny(tmp_path, f"reward.functions=[{reward}:short]")
    (run / "final_results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    reward.write_text(reward.read_text().replace("-float", "float"))
    changed = f"reward.functions.0 {reward}:short changed since the run began"
    assert refused(whet, "train", run, "--resume").startswith(changed)
    result = whet("train", run, "--resume", "--accept-changes")
    assert result.code == 0, result.err
    assert f"accepted: {changed}" in result.err
    assert json.loads((run / "final_results.json").read_text())["accepted_changes"] == [f"{changed} (after step 1)"]


def test_a_damaged_best_model_is_used_by_nobody(whet: Whet, stopped: Path, tmp_path: Path) -> None:
    weights = stopped / "best_model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + bytes([weights.read_bytes()[-1] ^ 1]))
    said = f"{weights} has a wrong checksum"
    recipe = write_recipe(tmp_path)
    for arguments in (
        ("eval", stopped, "--examples", 2),
        ("sample", stopped, "1>"),
        ("chat", stopped / "best_model"),
        ("train", recipe, f"model={{path: {stopped}}}", "--runs", tmp_path / "runs"),
        ("train", recipe, f"model={{path: {stopped / 'best_model'}}}", "--runs", tmp_path / "runs"),
    ):
        assert refused(whet, *arguments).startswith(said)


def test_a_checkpoint_of_another_model_is_refused(whet: Whet, tmp_path: Path, stopped: Path) -> None:
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("width: 16", "width: 32"))
    assert "the run began with other weights than model 'new' has now" in refused(
        whet, "train", stopped, "--resume", "--accept-changes"
    )


def test_a_run_without_an_intact_checkpoint_is_not_started_over(whet: Whet, stopped: Path) -> None:
    weights = stopped / "checkpoints" / "step-000001" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    result = whet("train", stopped, "--resume")
    assert result.code == 1
    first, last = result.err.splitlines()
    assert "model/model.safetensors has" in first
    assert "no checkpoint in" in last
    assert "is intact" in last
    assert "Traceback" not in result.err


def test_a_second_writer_is_refused_and_a_signal_saves_the_run(whet: Whet, zygote: Zygote, tmp_path: Path) -> None:
    endless = ("steps=1000000", "eval.every_steps=1000000")
    process = zygote.start("train", write_recipe(tmp_path), *endless, "--runs", tmp_path / "runs")
    process.until(lambda: any(tmp_path.glob("runs/*/checkpoints/step-*")), "a checkpoint")
    (run,) = (tmp_path / "runs").iterdir()
    assert f"is being written by process {process.pid}" in refused(whet, "train", run, "--resume")
    process.send(signal.SIGTERM)
    assert process.wait() == 130
    assert "Traceback" not in process.said()
    assert f"stopped; continue with: whet train {run} --resume" in process.said()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert (run / "checkpoints" / f"step-{last:06d}").is_dir()


def test_sigterm_ends_an_evaluation_as_ctrl_c_does(zygote: Zygote, finished: Path) -> None:
    hooks = {"signal_in": "0 SIGTERM 1 whet.engines.native.native_engine:NativeEngine.generate"}
    process = zygote.start("eval", finished, hooks=hooks, environment={"RANK": "0"})
    assert process.wait() == 130
    assert "Traceback" not in process.said()


def test_a_full_disk_stops_the_run_and_keeps_its_last_checkpoint(whet: Whet, zygote: Zygote, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, RECIPE.replace("width: 16", "width: 8"))
    changes = ("steps=120", "save.every_steps=5", "--runs", tmp_path / "runs")
    process = zygote.start("train", recipe, *changes, hooks={"limit_files": str(SMALL_FILE)})
    message = one_line(process.wait(), process.said(), 1)
    assert "cannot write metrics.jsonl" in message
    assert "File too large" in message
    (run,) = (tmp_path / "runs").iterdir()
    newest = max((run / "checkpoints").iterdir())
    assert f"the last good checkpoint is {newest}" in message
    assert message.count("the last good checkpoint") == 1
    whole = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert whole == list(range(len(whole)))  # no torn line
    assert message.startswith(f"step {whole[-1] + 1}: ")
    assert int(newest.name.removeprefix("step-")) == whole[-1] // 5 * 5 > 0
    result = whet("train", run, "--resume")
    assert result.code == 0, result.err
    assert json.loads((run / "final_results.json").read_text())["steps"] == 120


def test_ctrl_c_while_the_model_is_made(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    monkeypatch.setattr("whet.train.setup.build.new_decoder_config", interrupt)
    result = whet("train", write_recipe(tmp_path), "--runs", tmp_path / "runs")
    assert result.code == 130
    assert "Traceback" not in result.err
    assert result.err.count("\n") <= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_model_is_made_ends_the_process_quietly(zygote: Zygote, tmp_path: Path, number: int) -> None:
    hooks = {"wait_while_the_model_is_made": ""}
    process = zygote.start("train", write_recipe(tmp_path), "--runs", tmp_path / "runs", hooks=hooks)
    process.until(lambda: "loading\n" in process.said(), "the model")
    process.send(number)
    assert process.wait() == 130
    assert "Traceback" not in process.said()
    assert process.said().count("\n") <= 2  # "loading" is one
