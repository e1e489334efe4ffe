"""A run that is stopped, interrupted or killed continues as if nothing had happened, byte for byte."""

import json
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.native_trainer.program import PROGRAM, call, lines, repetitive, start, succeed, tiny, write_corpus

pytestmark = pytest.mark.native

STEPS = 12
USUAL = ("--batch", 6, "--micro-batch", 4, "--lr", 3e-3, "--warmup-steps", 3, "--weight-decay", 0.1, "--eval-every", 5)


@pytest.fixture
def given(tmp_path: Path) -> tuple[object, ...]:
    """The arguments of a run."""
    corpus = write_corpus(tmp_path / "corpus", repetitive(4000), training=3000)
    tiny(tmp_path / "model")
    return ("train", "--model", tmp_path / "model", "--data", corpus, *USUAL)


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def assert_same(run: Path, reference: Path) -> None:
    assert (run / "metrics.jsonl").read_bytes() == (reference / "metrics.jsonl").read_bytes()
    assert newest(run).name == newest(reference).name
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert (newest(run) / name).read_bytes() == (newest(reference) / name).read_bytes(), name
    assert [line["step"] for line in lines(run / "timings.jsonl")] == [
        line["step"] for line in lines(reference / "metrics.jsonl")
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_twelve_steps_are_six_and_six(tmp_path: Path, given: tuple[object, ...], threads: int) -> None:
    steps = ("--steps", STEPS, "--threads", threads)
    succeed(*given, *steps, "--out", tmp_path / "whole")
    out = succeed(*given, *steps, "--out", tmp_path / "parts", "--stop-after", 6)
    assert f"stopped after step 6 of 12; continue with: whet-native train --resume {tmp_path / 'parts'}" in out
    assert len(lines(tmp_path / "parts/metrics.jsonl")) == 6
    assert "finished" in succeed("train", "--resume", tmp_path / "parts")
    assert_same(tmp_path / "parts", tmp_path / "whole")
    before = (tmp_path / "parts/metrics.jsonl").read_bytes()
    assert "finished" in succeed("train", "--resume", tmp_path / "parts")  # once more: nothing is left to do
    assert (tmp_path / "parts/metrics.jsonl").read_bytes() == before


def test_a_resumed_run_has_the_learning_rates_of_the_whole(tmp_path: Path, given: tuple[object, ...]) -> None:
    """Not of a run that begins again: the comparison above would not see it if both were wrong."""
    succeed(*given, "--steps", STEPS, "--out", tmp_path / "run", "--stop-after", 6)
    succeed("train", "--resume", tmp_path / "run")
    found = lines(tmp_path / "run/metrics.jsonl")
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert found[6]["lr"] < found[5]["lr"] < found[3]["lr"]
    assert found[6]["tokens"] == 7 * 6 * 16


def wait_for_lines(process: subprocess.Popen[str], run: Path, count: int) -> None:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        log = run / "metrics.jsonl"
        if log.exists() and log.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.001)
    pytest.fail(f"the run ended or hung before step {count}: {process.communicate()}")


@pytest.mark.parametrize("save_every", [1, 7])
def test_killed_at_any_moment_it_can_be_resumed(tmp_path: Path, given: tuple[object, ...], save_every: int) -> None:
    """With a checkpoint at every step most kills hit the writing of one."""
    steps = ("--steps", 300, "--save-every", save_every)
    succeed(*given, *steps, "--out", tmp_path / "whole")
    run = tmp_path / "killed"
    arguments: tuple[object, ...] = (*given, *steps, "--out", run)
    for count in (1, 40, 90, 200):
        process = start(*arguments)
        wait_for_lines(process, run, count)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        arguments = ("train", "--resume", run)
    (run / "checkpoints/step-299.partial").mkdir(exist_ok=True)
    succeed(*arguments)
    assert_same(run, tmp_path / "whole")
    assert not list((run / "checkpoints").glob("*.partial"))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_says_how_to_continue(
    tmp_path: Path, given: tuple[object, ...], kind: signal.Signals
) -> None:
    steps = ("--steps", 300, "--save-every", 1000)
    succeed(*given, *steps, "--out", tmp_path / "whole")
    run = tmp_path / "a run's directory"
    process = start(*given, *steps, "--out", run)
    wait_for_lines(process, run, 5)
    process.send_signal(kind)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    stopped = len(lines(run / "metrics.jsonl"))
    assert newest(run).name == f"step-{stopped}"
    last = out.splitlines()[-1]
    assert last.startswith(f"stopped after step {stopped} of 300; continue with: ")
    words = shlex.split(last.split("continue with: ")[1])
    assert words == ["whet-native", "train", "--resume", str(run)]
    succeed(*words[1:])
    assert_same(run, tmp_path / "whole")


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path, given: tuple[object, ...]) -> None:
    succeed(*given, "--steps", STEPS, "--save-every", 2, "--keep", 3, "--out", tmp_path / "run")
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} == {"step-8", "step-10", "step-12"}
    state = json.loads((tmp_path / "run/checkpoints/step-12/state.json").read_text())
    assert (state["step"], state["tokens"]) == (12, 12 * 6 * 16)


def test_a_run_has_one_process(tmp_path: Path, given: tuple[object, ...]) -> None:
    process = start(*given, "--steps", 100_000, "--out", tmp_path / "run")
    wait_for_lines(process, tmp_path / "run", 1)
    other = call("train", "--resume", tmp_path / "run")
    process.kill()
    process.communicate()
    assert other.code == 1
    assert "is in use by another process" in other.err


def test_the_program_alone_is_enough(tmp_path: Path, given: tuple[object, ...]) -> None:
    """No Python, no environment, another working directory."""
    words = [str(PROGRAM), *map(str, given), "--steps", "2", "--out", "run"]
    done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines(tmp_path / "run/metrics.jsonl")) == 2
