"""`whet launch local` with a real run: detached, a killed rank resumes it, `stop` saves it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.refusal import RECIPE, refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from tests.launch.test_supervisor import until
from whet.launch.launches import save
from whet.launch.process_tree import children
from whet.launch.tool import Launch

SECONDS = 240.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to start from; what was launched from it and not ended is ended with the test."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for record in (tmp_path / "home" / "launches").glob("*.json"):
        process = int(json.loads(record.read_text())["id"])
        if Path(f"/proc/{process}/cmdline").exists() and b"supervisor" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGTERM)


def state(whet: Whet) -> str:
    (row,) = json.loads(whet("launch", "list", "--json").out)
    return str(row["state"])


def until_ended(whet: Whet) -> str:
    deadline = time.monotonic() + SECONDS
    while (found := state(whet)).startswith(("running", "stopping")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def until_checkpoint(run: Path, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while len(list((run / "checkpoints").glob("step-*"))) == 0 or _step(run) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _step(run: Path) -> int:
    return max((int(path.name[5:]) for path in (run / "checkpoints").glob("step-*[0-9]")), default=0)


def test_a_run_goes_on_in_the_background(whet: Whet, place: Path) -> None:
    recipe = write_recipe(place)
    started = whet("launch", "local", recipe, "--name", "demo", "--env", "GREETING=a 'word'", "--json")
    if sys.platform == "linux":
        environment = Path(f"/proc/{json.loads(started.out)['id']}/environ").read_bytes().split(b"\0")
        assert b"GREETING=a 'word'" in environment
    assert json.loads(started.out)["run"] == str(place / "runs" / "demo")
    assert until_ended(whet) == "finished"
    os.waitpid(int(json.loads(started.out)["id"]), 0)  # a child of this test alone
    followed = whet("launch", "logs", "demo", "--follow").out  # ends with the run
    assert followed.splitlines()[-1] == "whet: finished"
    assert (place / "runs" / "demo" / "final_results.json").is_file()
    assert whet("launch", "logs", "demo").out == followed


def left_behind(*before: str) -> subprocess.Popen[bytes]:
    """A process with the command line of a run, as it is known after its supervisor was killed."""
    words = ["train", "tiny.yaml", "--runs", "runs", "--out", str(Path("runs/demo").absolute()), "--restartable"]
    return subprocess.Popen([sys.executable, "-c", "input()", *before, *words], stdin=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_run_whose_supervisor_was_killed_can_still_be_stopped(whet: Whet, place: Path) -> None:
    """It holds its GPUs, so it is neither lost nor out of reach; its ranks are asked, and not torchrun above them."""
    # The number of its supervisor was given to that of another launch.
    other = subprocess.Popen(
        [sys.executable, "-c", "input()", "whet.launch.supervisor", '"/launches/my-demo.status"'], stdin=subprocess.PIPE
    )
    run, recipe = str(place / "runs" / "demo"), write_recipe(place)
    save(Launch(name="demo", tool="local", id=str(other.pid), recipe=str(recipe), run=run, started="", file="", log=""))
    torchrun = rank = other
    try:
        until(lambda: b"supervisor" in Path(f"/proc/{other.pid}/cmdline").read_bytes())
        assert state(whet) == "lost"
        torchrun, rank = left_behind("torch.distributed.run"), left_behind()
        until(lambda: state(whet) == "running, without its supervisor")
        assert "is not known to have ended" in refused(whet, "launch", "local", recipe, "--name", "demo")
        assert whet("launch", "stop", "demo").code == 0
        assert rank.wait(SECONDS) == -signal.SIGTERM
        assert torchrun.poll() is None
        assert whet("launch", "stop", "demo").code == 0  # nothing but torchrun is left
        assert torchrun.wait(SECONDS) == -signal.SIGTERM
        assert state(whet) == "lost"
        assert other.poll() is None
    finally:
        for process in (torchrun, rank, other):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_killed_rank_resumes_and_stop_saves(whet: Whet, place: Path) -> None:
    recipe = write_recipe(place, RECIPE.replace("steps: 2", "steps: 20000"))
    run = place / "runs" / "demo"
    assert whet("launch", "local", recipe, "--name", "demo", "--gpus", 2, "save.every_steps=5").code == 0
    until_checkpoint(run, 10)
    (row,) = json.loads(whet("launch", "list", "--json").out)
    (torchrun,) = children(int(row["id"]))
    ranks = children(torchrun)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    reached = _step(run)
    until_checkpoint(run, reached + 20)
    assert state(whet) == "running, restarted 1 time"
    assert f"{run} was begun before" in whet("launch", "logs", "demo").out
    assert "is not known to have ended" in refused(whet, "launch", "local", recipe, "--name", "demo")
    assert whet("launch", "stop", "demo").code == 0
    assert until_ended(whet) == "stopped"
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(len(steps)))
    assert len(steps) > reached


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained"))


def test_the_same_command_starts_resumes_and_leaves_a_run(whet: Whet, tmp_path: Path, finished: Path) -> None:
    run = tmp_path / "run"
    command = ("train", write_recipe(tmp_path), "--out", run, "--restartable")
    assert whet(*command).code == 0
    weights = (run / "metrics.jsonl").read_bytes()
    assert weights == (finished / "metrics.jsonl").read_bytes()
    (run / "final_results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    resumed = whet(*command)
    assert (resumed.code, resumed.out) == (0, f"{run}\n")
    assert "resumed after step 1" in resumed.err
    assert (run / "metrics.jsonl").read_bytes() == weights
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    again = whet(*command)
    assert (again.code, again.out) == (0, f"{run}\n")
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


def test_it_waits_for_the_process_that_it_replaces(
    whet: Whet, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is still held must not end the restarts: the holder may be a machine that died a minute ago."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "final_results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-000002")
    asked: list[float] = []

    def held(_path: Path) -> bool:
        asked.append(time.monotonic())
        return len(asked) < 3

    monkeypatch.setattr("whet.runs.catalogue.is_held", held)
    monkeypatch.setattr("whet.runs.catalogue.POLL_SECONDS", 0.0)
    assert whet("train", write_recipe(tmp_path), "--out", run, "--restartable").code == 0
    assert len(asked) >= 3  # once more where the finished run is reported


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--restartable",), "add --out DIR"),
        (("--restartable", "--resume"), "leave one out"),
        (("--restartable", "--name", "x"), "add --out DIR"),
    ],
)
def test_restartable_needs_an_exact_directory(whet: Whet, options: tuple[str, ...], words: str) -> None:
    assert words in refused(whet, "train", "grpo-sorting", *options)
