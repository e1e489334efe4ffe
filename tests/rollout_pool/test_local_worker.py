"""The trainer's side of a worker process, with processes that misbehave."""

import sys
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunFailed
from whet.train.rollout_pool import local_worker as module
from whet.train.rollout_pool.local_worker import LocalWorker
from whet.train.rollout_pool.orders import WorkerSetup
from whet.train.rollout_pool.schedule import Part
from whet.train.rollout_pool.ticket_pool import MOST_LOSSES, RolloutPool, WorkerLost

SETUP = WorkerSetup(
    model={"path": "nowhere"},
    engine={},
    seed=0,
    start="nowhere",
    keep_bf16=False,
    trains_in_bf16=False,
    device="cpu",
    threads=1,
)
BEGIN = """
import json, sys, time
def reply(**message):
    request = json.loads(sys.stdin.readline())["request"]
    print(json.dumps({**message, "request": request}), flush=True)
"""


def worker(monkeypatch: Any, tmp_path: Path, program: str, *, limit: float = 60.0) -> LocalWorker:
    """One that runs this program."""
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-S", "-c", BEGIN + program))
    return LocalWorker(3, SETUP, answers=tmp_path, limit_seconds=limit)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("sys.exit(7)", "ended with exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("print('hello', flush=True); time.sleep(60)", "which is not JSON"),
        ("reply(unready=True); time.sleep(60)", "gave an answer that is none"),
    ],
)
def test_how_a_worker_was_lost_is_told(program: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = worker(monkeypatch, tmp_path, program)
    with pytest.raises(WorkerLost) as caught:
        lost.start()
    assert how in str(caught.value)
    lost.close()


def test_a_worker_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_SECONDS", 0.0)
    hung = worker(monkeypatch, tmp_path, "time.sleep(600)", limit=0.5)
    with pytest.raises(WorkerLost, match=r"did not answer within 0\.5 s"):
        hung.start()
    hung.close()


def test_a_process_that_keeps_dying_ends_the_run_with_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.train.rollout_pool.ticket_pool.PAUSE_SECONDS", 0.0)
    program = "print('no space' + chr(27) + '[2J for a model', file=sys.stderr); sys.exit(1)"
    pool = RolloutPool(lambda _: worker(monkeypatch, tmp_path, program), 1)
    with pytest.raises(RunFailed) as caught:
        pool.answer(Part(1))
    pool.close()
    message = str(caught.value)
    assert message.startswith("rollout worker 0 (process ")
    assert f"ended with exit code 1, the {MOST_LOSSES}th time in a row; its last output: no space" in message
    assert "\x1b" not in message  # a terminal would act on it


def test_a_real_worker_says_what_is_wrong_with_its_setup(tmp_path: Path) -> None:
    """No other worker could do better, so it is not started again."""
    real = LocalWorker(3, SETUP, answers=tmp_path, limit_seconds=60.0)
    with pytest.raises(RunFailed, match=r"rollout worker 3: .*nowhere"):
        real.start()
    real.close()
