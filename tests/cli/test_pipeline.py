"""Pipelines through `whet train`, `whet compare` and `whet explain`, on models of a few hundred weights."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from whet.cli.progress import SilentProgress
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train import start
from whet.train.start import start_run

PIPELINE = """
loop: pipeline
seed: 4
shared:
  task: {name: sorting, level: 1}
  track: []
  eval: {every_steps: 2, examples: 4, max_tokens: 6}
  save: {every_steps: 1}
  rollout: {prompts: 2, group: 2, max_tokens: 3}
stages:
  sft: {loop: offline, steps: 2, batch_size: 4, model: {new: {layers: 1, heads: 2, width: 16, context: 16}}}
  more: {loop: offline, steps: 2, batch_size: 4, model: "@sft"}
methods:
  grpo: {algorithm: grpo, steps: 2, model: "@more"}
  rloo: {algorithm: rloo, steps: 2, model: "@more"}
compare: {start: "@more", prompts: 4, max_tokens: 6, best_of: []}
"""
SMALL = PIPELINE.replace("  more:", "  # more:").replace("@more", "@sft").replace("  rloo:", "  # rloo:")
RUNS = ["stages/sft", "stages/more", "methods/grpo/seed-4", "methods/rloo/seed-4"]
REWARD = """
def breaks(completions):
    raise RuntimeError("no reward today")
"""


def write(directory: Path, text: str = PIPELINE) -> Path:
    path = directory / "tiny.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pipeline, made in this process."""
    from whet.cli.commands.train import train

    directory = tmp_path_factory.mktemp("made")
    train(str(write(directory)), [], resume=False, accept_changes=False, runs=directory / "runs", as_json=False)
    (pipeline,) = (directory / "runs").iterdir()
    return pipeline


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "elsewhere" / made.name))


def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that are trained from now on, by the name that they go by."""
    names: list[str] = []
    real = start._train

    def watched(config, run, *rest):
        names.append(f"{run.recipe} {config.seed}")
        return real(config, run, *rest)

    monkeypatch.setattr(start, "_train", watched)
    return names


def test_it_leaves_a_run_for_each_stage_and_method_and_a_comparison(made: Path) -> None:
    assert made.name.endswith("-tiny")
    found = {str(path.parent.relative_to(made)) for path in made.rglob("final_results.json")}
    assert found == set(RUNS)
    assert (made / "comparison" / "comparison.json").is_file()
    names = [json.loads((made / run / "final_results.json").read_text())["recipe"] for run in RUNS]
    assert names == ["sft", "more", "grpo", "rloo"]  # none is called seed-4
    path = yaml.safe_load((made / "methods/grpo/seed-4/config.yaml").read_text())["model"]["path"]
    assert Path(path) == made / "stages" / "more"
    judged = json.loads((made / "comparison" / "comparison.json").read_text())
    assert [method["method"] for method in judged["methods"]] == ["grpo", "rloo"]


def test_its_runs_are_those_of_whet_train(made: Path, tmp_path: Path) -> None:
    """A chain of commands gives the same bytes: the best model of one stage is what the next begins with."""
    stage = yaml.safe_load((made / "config.yaml").read_text())["stages"]["more"]
    (tmp_path / "stage.yaml").write_text(yaml.safe_dump(stage))
    recipe = read_recipe(str(tmp_path / "stage.yaml"), [f"model={made / 'stages' / 'sft' / 'best_model'}"])
    alone = start_run(recipe, tmp_path / "alone", lambda config, run: SilentProgress())
    for name in ("metrics.jsonl", "best_model/model.safetensors"):
        assert (alone / name).read_bytes() == (made / "stages" / "more" / name).read_bytes()


def test_what_is_finished_is_not_made_again_wherever_it_lies(
    whet: Whet, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained(monkeypatch)
    result = whet("train", copied, "--resume", "--json", "methods.more={algorithm: grpo, steps: 1, model: '@sft'}")
    assert result.code == 0, result.err
    assert names == ["more 4"]
    told = json.loads(result.out)  # nothing else is on standard output
    assert told["pipeline"] == str(copied)
    assert [stage["stage"] for stage in told["stages"]] == ["sft", "more"]
    assert [(one["method"], one["seed"], one["failure"]) for one in told["methods"]] == [
        (name, 4, None) for name in ("grpo", "rloo", "more")
    ]
    for one in (*told["stages"], *told["methods"]):
        results = json.loads((Path(one["run"]) / "final_results.json").read_text())
        del results["checksum"]
        assert {key: one[key] for key in results} == results
    assert told["comparison"] == json.loads((copied / "comparison" / "comparison.json").read_text())
    assert result.err.count("already finished") == 4
    lines = [line for line in result.err.splitlines() if line[:2] in {"1/", "5/"}]
    assert lines[0].startswith("1/5  stage sft, already finished   elapsed ")
    assert lines[1].startswith("5/5  more seed 4   elapsed ")


def test_a_resumed_pipeline_may_only_change_what_has_not_begun(
    whet: Whet, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained(monkeypatch)
    assert "change them, e.g. stages.NAME.KEY=VALUE" in refused(
        whet, "train", copied, "--resume", "shared.task.level=2"
    )
    before = (copied / "config.yaml").read_bytes()
    message = refused(whet, "train", copied, "--resume", "stages.more.steps=3")
    assert f"{copied / 'stages' / 'more'} was made with another config (steps: 2 there, 3 here)" in message
    shutil.rmtree(copied / "stages" / "more")
    message = refused(whet, "train", copied, "--resume")
    assert "grpo/seed-4 was made from stage more, but" in message
    assert names == []
    assert (copied / "config.yaml").read_bytes() == before


def test_what_a_finished_run_was_made_from_may_not_change_behind_it(
    whet: Whet, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained(monkeypatch)
    (copied / "stages" / "sft" / "best_model" / "tokenizer_config.json").write_text("{}")
    message = refused(whet, "train", copied, "--resume")
    assert f"{copied / 'stages' / 'more'} is finished, and model.path" in message
    assert "files: tokenizer_config.json)" in message
    result = whet("train", copied, "--resume", "--accept-changes")
    assert result.code == 0, result.err
    assert "accepted: stage more is left as it was made, though model.path" in result.err
    assert names == []


def test_a_run_of_a_pipeline_that_goes_on_looks_at_its_inputs_too(whet: Whet, made: Path, copied: Path) -> None:
    grpo = copied / "methods" / "grpo" / "seed-4"
    (grpo / "config.yaml").write_text((grpo / "config.yaml").read_text().replace(str(made), str(copied)))
    (grpo / "final_results.json").unlink()
    shutil.rmtree(grpo / "checkpoints" / "step-000002")
    template = copied / "stages" / "more" / "best_model" / "tokenizer_config.json"
    before = template.read_bytes()
    template.write_bytes(before + b"\n")
    shutil.rmtree(copied / "methods" / "rloo")  # a finished one would be refused first
    message = refused(whet, "train", copied, "--resume")
    assert message.startswith("grpo seed 4: config.yaml of the run changed since the run began; model.path ")
    assert f"whet train {grpo} --resume --accept-changes" in message
    # It may be accepted as an input, but what the manifest of its stage does not know is not loaded.
    message = refused(whet, "train", copied, "--resume", "--accept-changes")
    assert f"{template} has " in message
    template.write_bytes(before)
    assert whet("train", copied, "--resume", "--accept-changes").code == 0


def test_it_tells_which_run_of_how_many_and_what_has_no_effect(whet: Whet, tmp_path: Path) -> None:
    recipe = write(tmp_path, SMALL.replace("compare:", "# compare:"))
    result = whet("train", recipe, "stages.sft.update.epochs=3", "methods.grpo.lr=1e-3", "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (out,) = (tmp_path / "runs").iterdir()
    lines = result.err.splitlines()
    assert lines[0] == f"pipeline: {out}"
    assert lines[1].startswith("note: stages.sft: update.epochs has no effect here: ")
    heads = [line.split("   ")[0] for line in lines if line[1:3] == "/2"]
    assert heads == ["1/2  stage sft", "2/2  grpo seed 4"]
    assert sum(line.startswith("step 2/2  ") for line in lines) == 2
    assert result.out == f"pipeline  {out}\n"
    assert RunDirectory.open(out / "methods/grpo/seed-4", is_writer=False).metrics()[-1]["lr"] == 1e-3


def test_ctrl_c_says_how_to_go_on_and_that_works(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write(tmp_path, SMALL.replace("compare:", "# compare:"))
    real = start.online.train

    def interrupted(config, run, world, progress):
        original = progress.step

        def step(number, metrics, timings):
            original(number, metrics, timings)
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)

        progress.step = step
        real(config, run, world, progress)

    monkeypatch.setattr(start.online, "train", interrupted)
    stopped = whet("train", recipe, "methods.grpo.steps=9", "--runs", tmp_path / "runs")
    assert stopped.code == 130
    (out,) = (tmp_path / "runs").iterdir()
    said = [line for line in stopped.err.splitlines() if "continue with" in line]
    assert said == [f"stopped; continue with: whet train {out} --resume"]  # of the pipeline, not of the run inside
    monkeypatch.setattr(start.online, "train", real)
    result = whet(*said[0].removeprefix("stopped; continue with: whet ").split())
    assert result.code == 0, result.err
    assert "2/2  grpo seed 4, resumed" in result.err
    assert [row["step"] for row in RunDirectory.open(out / "methods/grpo/seed-4", is_writer=False).metrics()] == list(
        range(10)
    )


def test_a_stage_that_fails_ends_the_pipeline_and_a_method_does_not(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARD)
    recipe = write(tmp_path, SMALL)
    breaks = f"reward.functions=[{tmp_path / 'rewards.py'}:breaks]"
    stage = "stages.more={algorithm: grpo, steps: 2, model: '@sft'}"
    message = refused(whet, "train", recipe, stage, f"stages.more.{breaks}", "--runs", tmp_path / "a", code=1)
    (out,) = (tmp_path / "a").iterdir()
    assert message.startswith("stage more: evaluation before training: ")
    assert "no reward today" in message
    assert message.endswith(f"; continue with: whet train {out} --resume")
    assert not (out / "methods").exists()
    other = "methods.rloo={algorithm: rloo, steps: 2, model: '@sft'}"
    message = refused(whet, "train", recipe, other, f"methods.grpo.{breaks}", "--runs", tmp_path / "b", code=1)
    (out,) = (tmp_path / "b").iterdir()
    assert message.startswith("1 of 2 runs of methods failed, first grpo seed 4: evaluation before training: ")
    assert RunDirectory.open(out / "methods/rloo/seed-4", is_writer=False).finished
    judged = json.loads((out / "comparison" / "comparison.json").read_text())
    failures = {method["method"]: method["seeds"][0]["failure"] for method in judged["methods"]}
    assert failures["rloo"] is None
    assert "no reward today" in failures["grpo"]


def test_compare_makes_the_stages_once_and_the_chosen_methods_with_every_seed(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = trained(monkeypatch)
    recipe, out = write(tmp_path, PIPELINE.replace("  more:", "  # more:").replace("@more", "@sft")), tmp_path / "out"
    words = ["compare", recipe, "--methods", "rloo", "--seeds", "0,5", "--set", "rloo:lr=1e-3", "--out", out, "--json"]
    result = whet(*words)
    assert result.code == 0, result.err
    assert names == ["sft 4", "rloo 0", "rloo 5"]
    assert json.loads(result.out) == json.loads((out / "comparison" / "comparison.json").read_text())
    assert RunDirectory.open(out / "methods/rloo/seed-5", is_writer=False).metrics()[-1]["lr"] == 1e-3
    more = whet(*(word if word != "rloo" else "grpo,rloo" for word in words))
    assert more.code == 0, more.err
    assert names[3:] == ["grpo 0", "grpo 5"]
    assert [method["method"] for method in json.loads(more.out)["methods"]] == ["grpo", "rloo"]


def test_wrong_input_is_one_line_and_leaves_nothing(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, runs = write(tmp_path), tmp_path / "runs"
    assert "has no method 'grpoo'; did you mean 'grpo'? (it has: grpo, rloo)" in refused(
        whet, "compare", recipe, "--methods", "grpoo", "--runs", runs
    )
    assert "comes twice" in refused(whet, "compare", recipe, "--methods", "grpo,grpo", "--runs", runs)
    assert "--target is for recipes of one run" in refused(
        whet, "compare", recipe, "--methods", "grpo", "--target", 0.5, "--runs", runs
    )
    assert "write METHOD:KEY=VALUE" in refused(whet, "compare", recipe, "--methods", "grpo", "--set", "lr=1")
    assert "methods has no 'ppo'" in refused(whet, "compare", recipe, "--methods", "grpo", "--set", "ppo:lr=1")
    assert "does not say how to compare" in refused(whet, "compare", recipe, "compare=null", "--methods", "grpo")
    message = refused(whet, "train", recipe, "stages.sft.model={path: nowhere-at-all}", "--runs", runs)
    assert message.startswith("stage sft: unknown model 'nowhere-at-all'")
    assert "unknown key 'stages.sft.stepz'" in refused(whet, "train", recipe, "stages.sft.stepz=1", "--runs", runs)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun" in refused(whet, "train", recipe, "--runs", runs)
    assert not runs.exists() or not list(runs.iterdir())


def test_a_pipeline_is_not_taken_for_a_run(made: Path) -> None:
    with pytest.raises(UserError, match="is a pipeline of several runs; name one of them"):
        RunDirectory.open(made, is_writer=False)


def test_explain_tells_every_run_before_any_has_begun(whet: Whet, tmp_path: Path) -> None:
    recipe = write(tmp_path)
    collect = "stages.pairs={loop: collect, model: '@sft', steps: 3}"
    result = whet("explain", recipe, collect, "methods.grpo.algorithm.kl.horizon=3")
    assert result.code == 0, result.err
    heads = [line for line in result.out.splitlines() if line[:1].isdigit()]
    assert heads == [
        "1/5  stages.sft",
        "2/5  stages.more",
        "3/5  stages.pairs",
        "4/5  methods.grpo",
        "5/5  methods.rloo",
    ]
    assert "collects pairs: 6 prompts × 2 completions, scored by task sorting" in result.out
    assert "algorithm.kl.horizon has no effect here: " in result.out
    whole = json.loads(whet("explain", recipe, "--json").out)
    # A model that a stage will make has the shape of the one that the stage began with.
    assert whole["methods.grpo"]["model"]["parameters"] == whole["stages.sft"]["model"]["parameters"] > 3000
