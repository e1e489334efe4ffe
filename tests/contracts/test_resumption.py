"""Contract 4. Stopped at any moment and resumed equals never stopped: the same bytes, metrics and weights."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.contracts.command import ENVIRONMENT, SUPERVISED, Process, Zygote, online, only_run, write_recipe
from tests.contracts.hooks import whereabouts
from whet.runs.layout import by_step

STEPS, SHORT = 36, 16


def outcome(run: Path) -> dict[str, bytes]:
    """Every byte that the contract promises, and what of the results holds no clock."""
    last = list(by_step(run / "checkpoints").values())[-1]
    folders = [run / "rollouts", run / "evals", run / "best_model", last]
    paths = [run / "config.yaml", run / "metrics.jsonl"]
    paths += [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    results = json.loads((run / "final_results.json").read_bytes())
    timeless = {key: results[key] for key in ("steps", "seed", "before", "after", "best", "tokens")}
    return {str(p.relative_to(run)): p.read_bytes() for p in paths} | {"results": json.dumps(timeless).encode()}


def differing(one: dict[str, bytes], two: dict[str, bytes]) -> list[str]:
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


@pytest.fixture(scope="module")
def recipe(beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "rl.yaml", online(beginner, steps=STEPS))


@pytest.fixture(scope="module")
def whole(zygote: Zygote, recipe: Path) -> dict[str, bytes]:
    """The run that is never stopped."""
    zygote.run("train", recipe, "--runs", recipe.parent / "whole")
    result = outcome(only_run(recipe.parent / "whole"))
    steps = [json.loads(line)["step"] for line in result["metrics.jsonl"].splitlines()]
    assert steps == list(range(STEPS + 1))
    files = ("model/model.safetensors", "optimizer.safetensors", "state.json")
    assert {f"checkpoints/step-{STEPS:06d}/{name}" for name in files} <= result.keys()
    assert {
        "rollouts/step-000020.jsonl.gz",
        "evals/step-000000.jsonl",
        f"evals/step-{STEPS:06d}.jsonl",
    } <= result.keys()
    return result


@pytest.fixture(scope="module")
def short(recipe: Path) -> Path:
    """A shorter run, for what one stop can show."""
    return write_recipe(recipe.parent / "short.yaml", {**yaml.safe_load(recipe.read_text()), "steps": SHORT})


@pytest.fixture(scope="module")
def short_whole(short: Path) -> dict[str, bytes]:
    """Never stopped: the plain command in a fresh interpreter."""
    command = [sys.executable, "-m", "whet", "train", str(short), "--runs", str(short.parent / "short")]
    subprocess.run(command, check=True, env={**os.environ, **ENVIRONMENT}, capture_output=True)
    return outcome(only_run(short.parent / "short"))


def go(zygote: Zygote, recipe: Path, root: Path, **options: object) -> Process:
    """Starts the run, or resumes the one that is there."""
    if root.is_dir() and any(root.iterdir()) and (only_run(root) / "config.yaml").exists():
        return zygote.start("train", only_run(root), "--resume", **options)
    return zygote.start("train", recipe, "--runs", root, **options)


def half_written(root: Path) -> list[Path]:
    """Checkpoints in the making."""
    return [path for run in root.iterdir() for path in (run / "checkpoints").glob(".tmp-*")] if root.is_dir() else []


def kill_in(process: Process, note: Path, root: Path, stage: str, rng: random.Random) -> str:
    """Kills the process in a stage, some steps from now and some way into it; says where the kill found it."""
    process.until(lambda: whereabouts(note)[1] not in ("", "start"), "the first stage")
    goal = whereabouts(note)[0] + rng.randint(0, 2)
    if stage == "checkpoint":
        process.until(lambda: half_written(root), "a half-written checkpoint")
    elif stage != "any":
        process.until(lambda: whereabouts(note)[1] == stage and whereabouts(note)[0] >= goal, f"stage {stage}")
    time.sleep(rng.choice([0.0, 0.002, 0.004]) if stage != "any" else rng.uniform(0, 0.3))
    process.kill()
    assert process.wait() == -signal.SIGKILL, f"the run ended before this kill: {process.said()}"
    return whereabouts(note)[1]


def test_seven_kills_change_no_byte(zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    rng = random.Random(11)
    root, note = tmp_path / "runs", tmp_path / "note"
    wanted = {"rollout", "update", "evaluate", "save"}
    plan = ["any", "rollout", "update", "checkpoint", "evaluate", "annotate", "save"]
    found, torn = [], 0
    while plan:
        note.write_text("")
        process = go(zygote, recipe, root, hooks={"announce": str(note)})
        found.append(kill_in(process, note, root, plan.pop(0), rng))
        torn += len(half_written(root))
        if not plan and len(found) < 16:  # a busy machine may be late for a stage: try again
            plan = sorted(wanted - set(found))[:1] or (["checkpoint"] if not torn else [])
    assert wanted <= set(found), found
    assert torn  # a kill did leave a checkpoint in the making, and nobody took it for a whole one
    last = go(zygote, recipe, root)
    assert last.wait() == 0, last.said()
    assert "resumed after step" in last.said()
    assert differing(outcome(only_run(root)), whole) == []


def test_the_comparison_sees_an_optimizer_that_was_not_restored(
    zygote: Zygote, short: Path, short_whole: dict[str, bytes], tmp_path: Path
) -> None:
    root, note = tmp_path / "runs", tmp_path / "note"
    note.write_text("")
    process = go(zygote, short, root, hooks={"announce": str(note)})
    process.until(lambda: whereabouts(note)[0] > 6, "step 7")
    process.kill()
    process.wait()
    broken = go(zygote, short, root, hooks={"forget_the_optimizer": ""})
    assert broken.wait() == 0, broken.said()
    changed = differing(outcome(only_run(root)), short_whole)
    assert {"metrics.jsonl", "checkpoints/step-000016/model/model.safetensors"} <= set(changed)


def test_three_kills_of_an_offline_run_change_no_byte(zygote: Zygote, supervised: Path, tmp_path: Path) -> None:
    rng = random.Random(12)
    recipe = write_recipe(tmp_path / "sft.yaml", SUPERVISED)
    root, note = tmp_path / "runs", tmp_path / "note"
    for stage in ("any", "checkpoint", "update"):
        note.write_text("")
        kill_in(go(zygote, recipe, root, hooks={"announce": str(note)}), note, root, stage, rng)
    last = go(zygote, recipe, root)
    assert last.wait() == 0, last.said()
    expected = outcome(supervised)
    assert json.loads(expected["best_model/best.json"])["step"] > 0  # it learned, so best_model was replaced
    assert differing(outcome(only_run(root)), expected) == []


def test_the_first_interrupt_ends_the_step_and_saves_it(
    zygote: Zygote, short: Path, short_whole: dict[str, bytes], tmp_path: Path
) -> None:
    root, note = tmp_path / "runs", tmp_path / "note"
    note.write_text("")
    process = go(zygote, short, root, hooks={"announce": str(note)})
    process.until(lambda: whereabouts(note) >= (7, ""), "step 7")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130  # not 0: a script must not go on as if the run were finished
    run = only_run(root)
    assert re.search("SIGINT: stopping( after this step)?; once more quits at once", process.said())
    assert f"stopped; continue with: whet train {run} --resume" in process.said()
    assert "Traceback" not in process.said()
    saved, logged = list(by_step(run / "checkpoints"))[-1], json.loads(read_lines(run / "metrics.jsonl")[-1])["step"]
    assert 6 <= logged <= saved <= logged + 1 < SHORT  # a step that is not evaluated yet is saved and not logged
    zygote.run("train", run, "--resume")
    assert differing(outcome(run), short_whole) == []


def test_the_second_interrupt_quits_at_once(
    zygote: Zygote, short: Path, short_whole: dict[str, bytes], tmp_path: Path
) -> None:
    for attempt in range(5):  # the step may end between the two signals
        root, note = tmp_path / f"runs-{attempt}", tmp_path / f"note-{attempt}"
        note.write_text("")
        process = go(zygote, short, root, hooks={"announce": str(note)})
        process.until(lambda note=note: whereabouts(note) >= (7, "") and whereabouts(note)[1] == "update", "an update")
        os.kill(process.pid, signal.SIGINT)
        process.until(lambda process=process: "SIGINT: stopping" in process.said(), "the first answer")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
        if "continue with" not in process.said():
            break
    else:
        pytest.fail("no second signal came in time")
    assert "Traceback" not in process.said()
    zygote.run("train", only_run(root), "--resume")
    assert differing(outcome(only_run(root)), short_whole) == []


GENERATE = "whet.engines.native.native_engine:NativeEngine.generate"
STOPS = {  # number of the call in which the process gets SIGTERM → the checkpoint that is left, the last logged step
    2: (None, None),  # the evaluation before training; steps 1 … 5 are calls 3 … 6 and 9, evaluation 4 calls 7 and 8
    10: (5, 5),  # the rollouts of step 6
    5: (8, 7),  # after resuming: rollouts of steps 6, 7 and 8, then the evaluation of step 8
    1: (8, 7),  # the same evaluation, after resuming again
}


def test_sigterm_ends_a_rollout_and_an_evaluation_at_once(
    zygote: Zygote, short: Path, short_whole: dict[str, bytes], tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    for call, (saved, logged) in STOPS.items():
        hooks = {"signal_in": f"0 SIGTERM {call} {GENERATE}"}
        process = go(zygote, short, root, hooks=hooks, environment={"RANK": "0"})
        assert process.wait() == 130, process.said()
        run = only_run(root)
        assert "SIGTERM: stopping; once more quits at once" in process.said()
        assert f"stopped; continue with: whet train {run} --resume" in process.said()
        assert "Traceback" not in process.said()
        assert max(by_step(run / "checkpoints"), default=None) == saved
        lines = read_lines(run / "metrics.jsonl") if saved else []
        assert (json.loads(lines[-1])["step"] if lines else None) == logged
    zygote.run("train", only_run(root), "--resume")
    assert differing(outcome(only_run(root)), short_whole) == []


def read_lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()
