"""Runs whose reward fails on some completions: they go on as the recipe allows, and resume bit for bit."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from tests.contracts.command import Zygote, only_run
from tests.contracts.test_resumption import differing, outcome
from tests.tasks.test_grading import gone, wait_until
from tests.tasks.test_reward_pool import workers_of
from whet.doctor.examine import examine_run
from whet.runs.directory import RunDirectory

REWARDS = """
import os, signal, time

def crashes(completions, completion_ids, trainer_state, log_metric, **columns):
    # Kills its process on completions whose ids add up to a multiple of seven.
    if any(sum(ids) % 7 == 0 for ids in completion_ids): os.kill(os.getpid(), signal.SIGKILL)
    log_metric("step", trainer_state.global_step)
    return [float(sum(ids) % 5) for ids in completion_ids]

def raises(completions, completion_ids, **columns):
    return [float(sum(ids) % 5) / (sum(ids) % 7 != 0) for ids in completion_ids]

def plain(completions, completion_ids, **columns): return [float(sum(ids) % 5) for ids in completion_ids]
def slow(completions, **columns):
    if os.path.exists(os.environ["SLOW"]): time.sleep(1000)
    return [float(len(text)) for text in completions]
"""


@pytest.fixture
def rewards(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(REWARDS)
    return str(tmp_path / "rewards.py")


def opened(path: Path) -> RunDirectory:
    return RunDirectory.open(path, is_writer=False)


def test_failures_are_left_out_counted_told_and_written(whet: Whet, rewards: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    given = (f"reward={{functions: ['{rewards}:crashes'], allowed_failures: 50, workers: 2}}", "steps=3")
    often = ("eval.every_steps=1", "save.rollouts_every_steps=1")
    result = whet("train", recipe, *given, *often, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    run = opened(only_run(tmp_path / "runs"))
    counted, evaluated = 0, 0
    for row in run.metrics():
        answers = run.answers(row["step"])
        scored = [answer for answer in answers if "reward" in answer]
        evaluated += len(answers) - len(scored)
        assert row.get("eval/scored", len(answers)) == len(scored)
        assert row["eval/logged/step"] == row["step"]
        if row["step"]:
            rollouts = [*run.rollouts(row["step"])]
            ids = [[i for i, picked in zip(r["tokens"], r["mask"], strict=True) if picked] for r in rollouts]
            failed = [sum(one) % 7 == 0 for one in ids]
            assert [r["reward"] for r in rollouts] == [
                None if lost else float(sum(one) % 5) for one, lost in zip(ids, failed, strict=True)
            ]
            assert not any(r["trained"] for r, lost in zip(rollouts, failed, strict=True) if lost)
            assert row["reward/failures"] == sum(failed)
            assert row["logged/step"] == row["step"] - 1
            counted += sum(failed)
    assert counted > 0
    files = sorted((run.path / "failures").iterdir())
    assert len(files) == counted + evaluated
    evidence = json.loads(files[0].read_text())
    assert evidence["error"].startswith("reward function crashes ended its process: the worker was killed by SIGKILL")
    assert {"step", "where", "example", "text"} <= evidence.keys()
    assert result.err.count("this completion is left out (reward.allowed_failures is 50), see ") == 1
    sentences = [finding.sentence for finding in examine_run(run).findings]
    plural = "s" if counted > 1 else ""
    assert any(text.startswith(f"the reward failed on {counted} rollout{plural}, first in step") for text in sentences)


def test_one_too_many_ends_the_run_and_so_does_the_first_without_the_key(
    whet: Whet, rewards: str, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path)
    for allowed in (0, 1):
        given = (f"reward={{functions: ['{rewards}:crashes'], allowed_failures: {allowed}}}", "eval.every_steps=0")
        message = refused(whet, "train", recipe, *given, "steps=9", "--runs", tmp_path / f"runs{allowed}", code=1)
        assert "reward function crashes ended its process: the worker was killed by SIGKILL" in message
        assert "; see " in message


def test_two_workers_change_no_byte(rewards: str, tmp_path: Path) -> None:
    def trained(name: str, **keys: object) -> dict[str, bytes]:
        more = [f"reward.{key}={value}" for key, value in keys.items()]
        (tmp_path / name).mkdir()
        run = train_tiny(tmp_path / name, f"reward.functions=['{rewards}:plain']", *more)
        return {key: value for key, value in outcome(run).items() if key != "config.yaml"}

    one = trained("one")
    assert differing(trained("two", workers=2), one) == []
    assert differing(trained("early", workers=2, prompts_per_call=1), one) == []


def test_a_resumed_run_has_the_same_failures(zygote: Zygote, rewards: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    given = (f"reward={{functions: ['{rewards}:raises'], allowed_failures: 99}}", "steps=5", "save.every_steps=1")
    zygote.run("train", recipe, *given, "--runs", tmp_path / "whole")
    process = zygote.start("train", recipe, *given, "--runs", tmp_path / "runs")
    process.until(lambda: list((tmp_path / "runs").glob("*/checkpoints/step-000002")), "a checkpoint")
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: all(map(gone, workers)))
    zygote.run("train", only_run(tmp_path / "runs"), "--resume")
    whole = outcome(only_run(tmp_path / "whole"))
    assert differing(outcome(only_run(tmp_path / "runs")), whole) == []
    state = json.loads(whole["checkpoints/step-000005/state.json"])
    rows = [json.loads(line) for line in whole["metrics.jsonl"].splitlines()]
    assert state["kept"]["failures"] == {"used": sum(row.get("reward/failures", 0) for row in rows)}
    assert state["kept"]["failures"]["used"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_worker(zygote: Zygote, rewards: str, tmp_path: Path, number: int) -> None:
    recipe = write_recipe(tmp_path)
    given = (f"reward={{functions: ['{rewards}:slow'], workers: 3, time_limit_seconds: 500}}", "eval.every_steps=0")
    hold = tmp_path / "hold"
    hold.write_text("")
    process = zygote.start("train", recipe, *given, "--runs", tmp_path / "runs", environment={"SLOW": str(hold)})
    process.until(lambda: len(workers_of(process.pid)) == 3, "three workers")
    workers = workers_of(process.pid)
    process.until(lambda: "run:" in process.said(), "the first step")
    time.sleep(0.5)
    os.kill(process.pid, number)
    process.wait()
    wait_until(lambda: all(map(gone, workers)))
