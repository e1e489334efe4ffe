"""Runs by name: `whet runs`, `@last`, a part of a name; where `whet train` puts a run, and what it prints."""

import json
import os
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.refusal import RECIPE, refused, write_recipe
from tests.cli.tiny import Whet
from whet.recipe import parse_yaml, plain, read_any, read_recipe
from whet.runs.lock import WriterLock


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `folder` copies: tiny-one, and tiny-two, which is newer."""
    return tmp_path_factory.mktemp("two")


@pytest.fixture
def folder(whet: Whet, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs …-one and …-two, of which the second is newer, in the folder of runs."""
    if not any(two.iterdir()):
        for name in ("one", "two"):
            assert whet("train", write_recipe(two), "--name", name, "--runs", two / "runs").code == 0
    shutil.copytree(two / "runs", tmp_path / "runs")
    monkeypatch.setenv("WHET_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def of(folder: Path, name: str) -> Path:
    (run,) = folder.glob(f"*-{name}")
    return run


def test_a_name_stands_for_a_run_everywhere(whet: Whet, folder: Path, tmp_path: Path) -> None:
    one, two = of(folder, "one"), of(folder, "two")
    for text, run in (("@last", two), ("two", two), ("@one", one), (one.name, one)):
        assert json.loads(whet("eval", text, "--examples", 2, "--json").out)["model"] == str(run / "best_model")
    assert json.loads(whet("report", "one", "--json").out)["report"] == str(one / "report.html")
    assert json.loads(whet("sample", "@last", "1>", "--json").out)["model"] == str(two / "best_model")
    assert f"{two} is finished" in refused(whet, "train", "two", "--resume")
    assert whet("chat", "@last").code == 0
    for word, run in (("model=@last", two), ("model.path=one", one)):
        out = tmp_path / f"from-{run.name}"
        assert whet("train", write_recipe(tmp_path), word, "steps=1", "--out", out).code == 0
        assert parse_yaml((out / "config.yaml").read_text(), where="")["model"]["path"] == str(run)
    told = whet("explain", "grpo-sorting", "model=@last")
    assert told.code == 0
    assert str(two) in told.out


def test_a_checkpoint_is_a_model(whet: Whet, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place, *_) = sorted((of(folder, "one") / "checkpoints").iterdir())
    told = json.loads(whet("eval", place, "--task", "sorting", "--examples", 2, "--json").out)
    assert told["model"] == str(place / "model")
    monkeypatch.chdir(place.parent)
    model = read_recipe("grpo-sorting", [f"model={place.name}"]).config.model
    assert model.path == str(place)  # absolute, as those of other models


IN_A_RECIPE = """
steps: 1
model: "@last"
algorithm: grpo
data: {path: "@one", match: exact}
reward: {model: {path: "@two", weight: 2}}
rollout: {prompts: 2, group: 2, max_tokens: 3}
"""
IN_A_PIPELINE = """
loop: pipeline
shared: {task: {name: sorting, level: 1}, batch_size: 4, steps: 1}
stages:
  sft: {loop: offline, model: "@last"}
  dpo: {loop: offline, model: "@sft", objective: dpo, reference: "@one", data: [{path: "@two"}, "@one"]}
methods:
  again: {algorithm: grpo, model: {path: "@one"}}
compare: {start: "@one"}
"""


def test_a_recipe_names_runs_too(whet: Whet, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = str(of(folder, "one")), str(of(folder, "two"))
    path = write_recipe(tmp_path, IN_A_RECIPE)
    config = read_recipe(str(path)).config
    assert (config.model.path, config.task.options["path"], config.reward.model.path) == (two, one, two)
    pipeline = read_any(str(write_recipe(tmp_path, IN_A_PIPELINE)), ["stages.sft.model=@one"]).config
    sft, dpo = pipeline.stages["sft"], pipeline.stages["dpo"]
    assert (sft.model.path, dpo.model.path, dpo.reference) == (one, "@sft", one)
    assert [one["path"] for one in plain(dpo)["data"]["sets"]] == [two, one]
    assert (pipeline.methods["again"].model.path, pipeline.compare.start) == (one, one)
    monkeypatch.delenv("WHET_RUNS")
    monkeypatch.chdir(tmp_path.parent)
    at = ("--runs", folder, "--out", tmp_path / "out")
    last = RECIPE.replace("model: {new: {family: gpt2, layers: 1, heads: 2, width: 16, context: 16}}", "model: '@last'")
    assert whet("train", write_recipe(tmp_path, last), "steps=1", *at).code == 0
    assert parse_yaml((tmp_path / "out" / "config.yaml").read_text(), where="")["model"]["path"] == two


def test_an_exact_name_comes_before_names_that_contain_it(whet: Whet, folder: Path) -> None:
    one = of(folder, "one")
    shutil.copytree(one, folder / "20200102-030405-one-more")
    for text in ("one", "@one", one.name):
        assert json.loads(whet("eval", text, "--examples", 2, "--json").out)["model"] == str(one / "best_model")
    assert "'@on' is in the names of 2 runs" in refused(whet, "eval", "@on")
    for text in ("one", "@one"):
        assert json.loads(whet("models", "inspect", text, "--json").out)["path"] == str(one / "best_model")
    assert "nor is it part of the name of a run" in refused(whet, "models", "inspect", "three")


def test_a_recipe_with_the_name_of_several_runs_or_of_none(whet: Whet, folder: Path, tmp_path: Path) -> None:
    one, two = of(folder, "one").name, of(folder, "two").name
    several = write_recipe(tmp_path, IN_A_RECIPE.replace("@last", "@2"))
    assert f"'@2' is in the names of 2 runs below {folder}: {two}, {one}; give" in refused(whet, "explain", several)
    several = write_recipe(tmp_path, IN_A_PIPELINE.replace("@last", "@2"))
    assert f"'@2' is in the names of 2 runs below {folder}: {two}, {one}; give" in refused(whet, "explain", several)
    none = write_recipe(tmp_path, IN_A_RECIPE.replace("@last", "@three"))
    assert f"no run @three: below {folder} there are {two}, {one}" in refused(whet, "explain", none)
    none = write_recipe(tmp_path, IN_A_PIPELINE.replace("@last", "@three"))
    assert "'@three' and no earlier stage is called 'three'" in refused(whet, "explain", none)
    plain_text = write_recipe(tmp_path, IN_A_RECIPE.replace('"@last"', "@last"))
    assert "quote the name of a run or a stage, e.g. '@last'" in refused(whet, "explain", plain_text)


def test_an_extended_run_is_the_last_one(whet: Whet, folder: Path) -> None:
    assert whet("train", "one", "--resume", "steps=3").code == 0
    assert json.loads(whet("report", "@last", "--json").out)["report"] == str(of(folder, "one") / "report.html")


def test_the_start_is_that_of_the_first_process(whet: Whet, folder: Path, tmp_path: Path) -> None:
    """Also after an extension, which writes config.yaml again: by the name, or by the oldest file of the run."""
    one, own = of(folder, "one"), tmp_path / "out" / "chosen"
    one = one.rename(folder / "20200102-030405-one")
    shutil.copytree(one, own)
    for file in (file for file in own.rglob("*") if file.is_file()):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    for run, began in ((one, datetime(2020, 1, 2, 3, 4)), (own, datetime.fromtimestamp(1_000_000_000))):
        assert whet("train", run, "--resume", "steps=3").code == 0
        (listed,) = [row for row in json.loads(whet("runs", run.parent, "--json").out) if row["path"] == str(run)]
        assert listed["started"] == began.isoformat(sep=" ", timespec="minutes")


def test_the_last_run_of_another_directory(whet: Whet, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`@last` is looked for below the folder of runs of this directory; a path works from anywhere."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("WHET_RUNS")
    for command in (("train", "@last", "--resume"), ("report", "two")):
        told = refused(whet, *command)
        assert f"there are no runs below {elsewhere}/runs; give the path of the run, or its folder" in told
    two = of(folder, "two")
    for resumed in (("@last", "--runs", folder), (two,)):
        assert f"{two} is finished" in refused(whet, "train", *resumed, "--resume")


def test_names_of_several_runs_and_of_none(whet: Whet, folder: Path, tmp_path: Path) -> None:
    one, two = of(folder, "one").name, of(folder, "two").name
    explain = ("explain", "grpo-sorting", "model=@2")
    for command in (("eval", "2"), ("report", "2"), ("train", "2", "--resume"), explain):
        assert f"is in the names of 2 runs below {folder}: {two}, {one}; give more of a name" in refused(whet, *command)
    for command in (("eval", "@three"), ("sample", "three"), ("report", "three"), ("train", "three", "--resume")):
        assert f"below {folder} there are {two}, {one}" in refused(whet, *command)
    shutil.rmtree(folder)
    assert refused(whet, "report", "@last").startswith(f"no run @last: there are no runs below {folder}; give the path")
    assert whet("runs").out == f"there are no runs below {folder}\n"


def test_runs_are_listed_with_status_and_result(whet: Whet, folder: Path) -> None:
    one, two = of(folder, "one"), of(folder, "two")
    failed, stage = (Path(shutil.copytree(one, folder / name)) for name in ("failed", "pipe/stages/sft"))
    (folder / "pipe" / "config.yaml").write_text("loop: pipeline\n")
    for run in (one, failed):
        (run / "final_results.json").unlink()
    (failed / "failures").mkdir()
    (failed / "failures" / "reward-001.json").write_text(json.dumps({"step": 3, "error": "r.py:f raised ValueError"}))
    for age, path in enumerate((two, one, failed, stage)):
        os.utime(path / "config.yaml", (10_000 - age, 10_000 - age))
    rows = json.loads(whet("runs", "--json").out)
    assert [row["path"] for row in rows] == [str(path) for path in (two, one, failed, stage)]
    statuses = ["finished, 2 steps", "stopped after step 2", "failed in step 3", "finished, 2 steps"]
    assert [row["status"] for row in rows] == statuses
    assert [row["recipe"] for row in rows] == ["two", "one", "failed", "sft"]
    assert [row["run"] for row in rows][-1] == "pipe/stages/sft"
    assert re.fullmatch(r"held-out accuracy [\d.]+ ?% → [\d.]+ ?%", rows[0]["result"])
    assert rows[2]["result"] == "r.py:f raised ValueError"
    lock = WriterLock(one / ".lock")
    shown = whet("runs", folder).out
    lock.release()
    assert "being written, step 2" in shown
    assert "failed in step 3" in shown
    assert whet("report", "stages/sft").code == 0


def test_where_a_run_goes_and_what_is_printed(whet: Whet, tmp_path: Path) -> None:
    recipe, exact = write_recipe(tmp_path), tmp_path / "exactly" / "here"
    result = whet("train", recipe, "steps=1", "--out", exact, "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    assert (told["run"], told["steps"]) == (str(exact), 1)
    assert [row["status"] for row in json.loads(whet("runs", exact.parent, "--json").out)] == ["finished, 1 step"]
    assert f"{exact} is not empty" in refused(whet, "train", recipe, "--out", exact)
    assert "--name would have no effect" in refused(whet, "train", recipe, "--out", exact, "--name", "x")
    assert "--out is for a new run" in refused(whet, "train", exact, "--resume", "--out", exact)
    assert "--name is for a new run" in refused(whet, "train", exact, "--resume", "--name", "x")
