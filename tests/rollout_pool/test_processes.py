"""Real workers and real kills: a run is what it would have been, and nothing outlives the trainer."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import LIMIT_SECONDS, Process, Zygote, write_recipe
from tests.contracts.here import save_small
from tests.rollout_pool.here import in_threads
from tests.rollout_pool.test_runs import AHEAD, recipe, same, train
from whet.runs.logs import read_log

WORKER = b"whet.train.rollout_pool.worker"
STEPS = 24


def written(model: Path, **ahead: Any) -> dict[str, Any]:
    return {**recipe(model, {"staleness": 2, "workers": 2, **ahead}, **AHEAD), "steps": STEPS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "start", sharp=2.0)


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with workers in threads, to which nothing happens."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_threads(monkeypatch)
        return train(written(model, threads=1), tmp_path_factory.mktemp("undisturbed") / "run")


def workers_of(trainer: int) -> list[int]:
    """Process ids of its workers."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and WORKER in (directory / "cmdline").read_bytes():
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(directory.name)] * (parent == trainer)
        except OSError:  # it ended
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def steps_of(run: Path) -> int:
    return max((row["step"] for row in read_log(run / "metrics.jsonl")), default=0) if run.exists() else 0


def kill_worker(trainer: Process, rng: random.Random) -> int:
    pids = workers_of(trainer.pid)
    if not pids:
        return 0
    os.kill(rng.choice(pids), signal.SIGKILL)
    return 1


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_alive, pids))


def test_kills_of_a_worker_and_of_the_trainer_change_no_byte(
    zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, rng = tmp_path / "run", random.Random(1)
    trainer = zygote.start("train", write_recipe(tmp_path / "ahead.yaml", written(model, threads=1)), "--out", run)
    trainer.until(lambda: steps_of(run) >= 3, "the third step")
    assert kill_worker(trainer, rng)
    trainer.until(lambda: steps_of(run) >= 8, "the eighth step")
    pids = workers_of(trainer.pid)
    trainer.kill()
    trainer.wait()
    assert pids
    assert gone(pids), "a worker outlives its trainer"
    assert steps_of(run) < STEPS
    zygote.run("train", run, "--resume")
    same(undisturbed, run)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_change_no_byte(
    seed: int, zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Workers and trainer are killed at moments that nobody chose, until the run is finished."""
    rng, run = random.Random(seed), tmp_path / "run"
    kills, resumed = 0, 0
    trainer = zygote.start("train", write_recipe(tmp_path / "ahead.yaml", written(model, threads=1)), "--out", run)
    while not (run / "final_results.json").exists():
        time.sleep(rng.uniform(0.0, 3.0))
        if rng.random() < 0.8 or resumed >= 3 or not (run / "saved.json").exists():
            kills += kill_worker(trainer, rng) if kills < 12 else 0
        elif not (run / "final_results.json").exists():
            pids = workers_of(trainer.pid)
            trainer.kill()
            trainer.wait()
            assert gone(pids)
            resumed += 1
            trainer = zygote.start("train", run, "--resume")
    trainer.wait()
    assert kills + resumed > 0
    same(undisturbed, run)
