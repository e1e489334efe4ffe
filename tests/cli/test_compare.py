"""`whet compare`, end to end on a model of a few hundred weights."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import yaml

from tests.cli.refusal import RECIPE, refused, write_recipe
from tests.cli.tiny import Whet, bigram_model
from tests.train import rows_on_disk as on_disk
from whet.cli.experiments import read_seeds
from whet.cli.progress import SilentProgress
from whet.data.sources import Source, load_rows
from whet.data.split import split_rows
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train import start
from whet.train.start import start_run

REWARD = """
def breaks(completions):
    raise RuntimeError("no reward today")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods with two seeds, made in this process."""
    from whet.cli.commands.compare import compare

    directory = tmp_path_factory.mktemp("compared")
    recipe = str(write_recipe(directory))
    compare(recipe, ["steps=3"], methods="rloo,grpo", seeds="2", changes=["grpo:lr=1e-3"], runs=directory,
            out=directory / "out", target=0.5, as_json=False)  # fmt: skip
    return directory


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copied"))


def again(whet: Whet, where: Path, *more: object, methods: str = "rloo,grpo"):
    """The command that made it."""
    words = ["--methods", methods, "--seeds", 2, "--set", "grpo:lr=1e-3", "--target", 0.5, "--out", where / "out"]
    return whet("compare", where / "tiny.yaml", "steps=3", *words, *more)


def runs_made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that are trained from now on."""
    trained: list[Path] = []
    real = start._train

    def watched(config, run, *rest):
        trained.append(run.path)
        return real(config, run, *rest)

    monkeypatch.setattr(start, "_train", watched)
    return trained


def test_it_leaves_four_runs_a_table_curves_and_numbers(made: Path) -> None:
    out = made / "out"
    found = {str(path.parent.relative_to(out)) for path in out.rglob("final_results.json")}
    assert found == {"rloo/seed-0", "rloo/seed-1", "grpo/seed-0", "grpo/seed-1"}
    saved = json.loads((out / "comparison.json").read_text())
    assert saved["overrides"] == {
        "rloo": ["algorithm=rloo", "steps=3"],
        "grpo": ["algorithm=grpo", "steps=3", "lr=1e-3"],
    }
    assert {entry["method"] for entry in saved["methods"]} == {"rloo", "grpo"}
    assert [seed["seed"] for seed in saved["methods"][0]["seeds"]] == [0, 1]
    assert saved["curves"]["rloo"]["0"]["eval/accuracy"]["steps"] == [0, 2, 3]
    assert saved["command"].startswith("whet compare --methods rloo,grpo --seeds 2 ")
    assert saved["command"].endswith(f"--set grpo:lr=1e-3 --target 0.5 --out {out}")
    assert saved["versions"][0]["torch"]
    assert saved["command"] in (out / "comparison.md").read_text()
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_its_runs_are_those_of_whet_train(made: Path, tmp_path: Path) -> None:
    """What ran before in the process must not matter: the same bytes as alone."""
    overrides = ["algorithm=grpo", "steps=3", "lr=1e-3", "seed=1"]
    recipe = read_recipe(str(made / "tiny.yaml"), overrides)
    alone = start_run(recipe, tmp_path, lambda config, run: SilentProgress())
    for name in ("config.yaml", "metrics.jsonl", "best_model/model.safetensors"):
        assert (alone / name).read_bytes() == (made / "out" / "grpo" / "seed-1" / name).read_bytes()


def test_finished_runs_are_used_again_and_more_may_be_asked_for(
    whet: Whet, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = runs_made(monkeypatch)
    result = again(whet, copied)
    assert result.code == 0, result.err
    assert trained == []
    assert result.err.count("already finished") == 4
    more = again(whet, copied, "--seeds", "1,2", methods="grpo,reinforce")
    assert more.code == 0, more.err
    names = {str(path.relative_to(copied / "out")) for path in trained}
    assert names == {"reinforce/seed-1", "reinforce/seed-2", "grpo/seed-2"}


def test_a_stopped_run_is_resumed_to_the_same_end(whet: Whet, made: Path, copied: Path) -> None:
    run = copied / "out" / "rloo" / "seed-1"
    before = (run / "metrics.jsonl").read_bytes()
    (run / "final_results.json").unlink()
    # As after a kill before the first checkpoint: the run starts over from nothing.
    shutil.rmtree(run / "checkpoints")
    (run / "saved.json").unlink()
    (run / "metrics.jsonl").write_bytes(before.splitlines(keepends=True)[0])
    result = again(whet, copied)
    assert result.code == 0, result.err
    assert "rloo seed 1, resumed" in result.err
    assert (run / "metrics.jsonl").read_bytes() == before
    assert RunDirectory.open(run, is_writer=False).finished


def test_a_directory_of_another_config_is_refused_before_anything_runs(
    whet: Whet, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = runs_made(monkeypatch)
    message = refused(
        whet, "compare", copied / "tiny.yaml", "steps=4", "--methods", "reinforce,grpo", "--out", copied / "out"
    )
    assert f"{copied / 'out' / 'grpo' / 'seed-0'} was made with another config (steps: 3 there, 4 here)" in message
    assert "choose another --out" in message
    assert trained == []
    assert not (copied / "out" / "reinforce").exists()


def test_it_tells_how_far_it_is_and_what_it_found(whet: Whet, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    result = whet("compare", recipe, "--methods", "reinforce, rloo", "--seeds", "3,", "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (out,) = (tmp_path / "runs").iterdir()
    assert out.name.endswith("-compare-tiny")
    lines = result.err.splitlines()
    assert lines[0] == f"comparison: {out}"
    assert lines.pop(1).startswith("disk: 2 runs take at most ")
    assert lines[1].startswith("1/2  reinforce seed 3   elapsed ")
    assert lines[2].startswith("     held-out accuracy 0.0% → ")
    assert lines[3].startswith("2/2  rloo seed 3   elapsed ")
    assert lines[3].endswith(" left")
    assert len(lines) == 5
    assert "\n| method " in result.out
    assert "One finished seed cannot tell methods apart" in result.out
    assert f"page      {out / 'comparison.html'}" in result.out
    assert f"table     {out / 'comparison.md'}" in result.out
    command = json.loads((out / "comparison.json").read_text())["command"]
    assert command == f"whet compare --methods reinforce,rloo --seeds 3, {recipe}"


def test_json_is_the_file(whet: Whet, copied: Path) -> None:
    result = again(whet, copied, "--json")
    assert json.loads(result.out) == json.loads((copied / "out" / "comparison.json").read_text())


def test_a_run_that_fails_does_not_lose_the_others(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    words = ["compare", "tiny.yaml", "--methods", "rloo,grpo", "--seeds", 1, "--out", "out"]
    result = whet(*words, "--set", f"rloo:reward.functions=[{tmp_path / 'rewards.py'}:breaks]")
    assert result.code == 1
    last = result.err.splitlines()[-1]
    assert last.startswith("whet: 1 of 2 runs of methods failed, first rloo seed 0: evaluation before training: ")
    assert "no reward today" in last
    assert "Traceback" not in result.err
    assert "2/2  grpo seed 0" in result.err
    saved = {m["method"]: m["seeds"][0] for m in json.loads((tmp_path / "out/comparison.json").read_text())["methods"]}
    assert "no reward today" in saved["rloo"]["failure"]
    assert saved["grpo"]["value"] is not None
    assert "| failed " in result.out


def test_ctrl_c_says_how_to_go_on_and_that_works(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path, RECIPE.replace("steps: 2", "steps: 8"))
    words = ["compare", recipe, "--methods", "rloo,grpo", "--seeds", 1, "--out", tmp_path / "out"]
    real, calls = start.online.train, []

    def interrupted(config, run, world, progress):
        calls.append(run.path)
        if len(calls) == 2:
            original = progress.step

            def step(number, metrics, timings):
                original(number, metrics, timings)
                if number == 5:
                    os.kill(os.getpid(), signal.SIGINT)

            progress.step = step
        real(config, run, world, progress)

    monkeypatch.setattr(start.online, "train", interrupted)
    stopped = whet(*words)
    assert stopped.code == 130
    go_on = next(line for line in stopped.err.splitlines() if line.startswith("stopped; continue with: "))
    assert go_on.endswith(f"whet compare --methods rloo,grpo --seeds 1 {recipe} --out {tmp_path / 'out'}")
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert "--resume" not in stopped.err  # one command goes on with everything
    monkeypatch.setattr(start.online, "train", real)
    result = whet(*go_on.removeprefix("stopped; continue with: whet ").split())
    assert result.code == 0, result.err
    assert "rloo seed 0, already finished" in result.err
    assert "grpo seed 0, resumed" in result.err
    whole = RunDirectory.open(tmp_path / "out" / "grpo" / "seed-0", is_writer=False).metrics()
    assert [row["step"] for row in whole] == list(range(9))


def test_wrong_input_is_one_line_and_leaves_nothing(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path)
    runs = tmp_path / "runs"
    both = ["--methods", "rloo,grpo", "--runs", runs]
    assert "no method 'grpo2'; did you mean 'grpo'?" in refused(
        whet, "compare", recipe, "--methods", "rloo,grpo2", "--runs", runs
    )
    assert "comes twice" in refused(whet, "compare", recipe, "--methods", "rloo,rloo", "--runs", runs)
    assert "names no method" in refused(whet, "compare", recipe, "--methods", " , ", "--runs", runs)
    assert "'--methods'" in refused(whet, "compare", recipe)
    assert "has loop offline" in refused(whet, "compare", "sft-reverse", *both)
    assert "no recipe 'grpo-sortin'" in refused(whet, "compare", "grpo-sortin", *both)
    assert "use --seeds" in refused(whet, "compare", recipe, "seed=3", *both)
    assert "use --methods" in refused(whet, "compare", recipe, "algorithm=grpo", *both)
    assert "use --methods" in refused(whet, "compare", recipe, *both, "--set", "grpo:algorithm.preset=rloo")
    assert "'ppo9' is not among the methods" in refused(whet, "compare", recipe, *both, "--set", "ppo9:lr=1")
    assert "write METHOD:KEY=VALUE" in refused(whet, "compare", recipe, *both, "--set", "lr=1")
    assert "must be a share" in refused(whet, "compare", recipe, *both, "--target", 80)
    message = refused(whet, "compare", recipe, *both, "--set", "grpo:stepz=3")
    assert message.startswith("method grpo: ")
    assert "unknown key 'stepz'" in message
    assert "unknown model" in refused(whet, "compare", recipe, "model=nowhere-at-all", *both)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun" in refused(whet, "compare", recipe, *both)
    assert not runs.exists() or not list(runs.iterdir())


def write_preferences(directory: Path) -> Path:
    """A recipe of a preference loss on pairs, in two steps."""
    config = on_disk.config(on_disk.saved_model(directory / "start"), on_disk.pairs(directory / "pairs.jsonl"), "dpo")
    path = directory / "preferences.yaml"
    path.write_text(yaml.safe_dump({**config.model_dump(mode="json", exclude_none=True), "steps": 2}))
    return path


def test_preference_losses_are_ranked_by_held_out_pairs(whet: Whet, tmp_path: Path) -> None:
    recipe = write_preferences(tmp_path)
    told = ("--set", "ipo:objective.beta=0.2", "--json", "--out", tmp_path / "out")
    result = whet("compare", recipe, "--methods", "dpo,ipo", "--seeds", 2, *told)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    _, held_out = split_rows(load_rows(Source(path=str(tmp_path / "pairs.jsonl"))).rows, 0.25)
    assert found["metric"] == "eval/pair_accuracy"
    assert "highest mean held-out pair accuracy" in found["verdict"]
    for method in found["methods"]:
        runs = [RunDirectory.open(tmp_path / "out" / seed["run"], is_writer=False) for seed in method["seeds"]]
        shares = [(run.results() or {})["after"]["eval/pair_accuracy"] for run in runs]
        assert [seed["value"] for seed in method["seeds"]] == shares
        assert method["value"]["mean"] == pytest.approx(sum(shares) / 2)
        assert {seed["examples"] for seed in method["seeds"]} == {len(held_out)} != {12}  # at most eval.examples
        assert "eval/pair_accuracy" in found["curves"][method["method"]]["0"]
        options = [yaml.safe_load(run.config_yaml())["objective"] for run in runs]
        assert [(one["name"], one.get("beta")) for one in options] == [
            (method["method"], 0.2 if method["method"] == "ipo" else None)
        ] * 2
    shown = whet("compare", recipe, "--methods", "dpo,ipo", "--seeds", 2, *told[:2], *told[3:])
    assert "held-out pair accuracy" in shown.out


PROMPTS_ALONE = """
steps: 2
model: start
data: {path: prompts.jsonl, held_out_rows: 6}
reward: {functions: ["rewards.py:length"]}
rollout: {prompts: 2, group: 2, max_tokens: 3}
eval: {every_steps: 1, examples: 6, max_tokens: 3}
track: []
"""


def test_own_prompts_are_ranked_by_the_reward(whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts without answers and a reward function: there is no accuracy, and the held-out reward ranks."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{i}>"}) + "\n" for i in range(20)))
    Path("rewards.py").write_text("def length(completions):\n    return [10.0 * len(text) for text in completions]\n")
    Path("own.yaml").write_text(PROMPTS_ALONE)
    bigram_model(Path("start"), {}, alphabet="0123456789>")
    words = ["compare", "own.yaml", "--methods", "rloo,grpo", "--seeds", 2, "--out", "out"]
    shown = whet(*words)
    assert shown.code == 0, shown.err
    assert "| held-out reward |" in shown.out
    assert "the highest mean held-out reward" in shown.out
    assert "accuracy" not in shown.out
    assert "steps to" not in shown.out
    assert "held-out reward" in shown.err
    found = json.loads(whet(*words, "--target", 25, "--json").out)
    assert (found["metric"], found["target"]) == ("eval/reward", 25)
    for method in found["methods"]:
        for seed in method["seeds"]:
            run = RunDirectory.open(tmp_path / "out" / seed["run"], is_writer=False)
            after = (run.results() or {})["after"]
            assert (seed["value"], seed["examples"]) == (after["eval/reward"], 6)
            half = (after["eval/reward_high"] - after["eval/reward_low"]) / 2
            assert seed["error"] == pytest.approx(half / 2.570582, rel=1e-5)  # Student's t with 5 degrees of freedom
        assert "eval/reward" in found["curves"][method["method"]]["0"]
    other = ("--set", "grpo:reward.length_penalty=0.1")
    assert "different rewards, which do not compare" in refused(whet, *words[:-2], *other)
    assert "set eval.every_steps" in refused(whet, *words[:-2], "eval.every_steps=0")


def test_methods_that_do_not_compare_are_refused(whet: Whet, tmp_path: Path) -> None:
    recipe = write_preferences(tmp_path)
    online = write_recipe(tmp_path)
    runs = ("--runs", tmp_path / "runs")
    assert "measured on pairs and kto on single" in refused(whet, "compare", recipe, "--methods", "dpo,kto", *runs)
    assert "compare them in a pipeline" in refused(whet, "compare", recipe, "--methods", "dpo,grpo", *runs)
    assert "did you mean 'simpo'?" in refused(whet, "compare", recipe, "--methods", "dpo,simpoo", *runs)
    assert "has loop online, and these methods learn from pairs" in refused(
        whet, "compare", online, "--methods", "dpo,ipo", *runs
    )
    assert "use --methods" in refused(whet, "compare", recipe, "objective=ipo", "--methods", "dpo,ipo", *runs)


def test_seeds_are_a_count_or_a_list() -> None:
    assert read_seeds("3") == [0, 1, 2]
    assert read_seeds("3,7") == [3, 7]
    assert read_seeds("7,") == [7]
    for wrong in ("0", "-1", "x", "", "1,1", "1,x", "-1,2", ","):
        with pytest.raises(UserError, match="--seeds"):
            read_seeds(wrong)


def test_help_has_an_example(whet: Whet) -> None:
    result = whet("compare", "--help")
    assert result.code == 0
    assert "whet compare --methods reinforce,rloo,grpo --seeds 3 grpo-sorting" in result.out
