"""Real workers and real kills: a run is what it would have been, and nothing outlives the trainer."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.contracts.command import LIMIT_SECONDS, Process, Zygote, write_recipe
from tests.contracts.test_additivity_ranks import SMOOTH, alike
from tests.rollout_pool.here import STEPS, same, written
from whet.runs.logs import read_log

WORKER = b"whet.train.rollout_pool.worker_process"


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


def test_ranks_that_share_a_policy_train_as_without_workers(zygote: Zygote, model: Path, tmp_path: Path) -> None:
    """Each rank gets the completions of its own prompts, sampled with weights that both have handed over.

    But for rounding: a worker samples the prompts of both in one batch.
    """
    now = {**written(model, threads=1, staleness=0), "steps": 3, "distributed": "fsdp2", "optimizer": SMOOTH}
    now["save"] = {"every_steps": 1, "keep": 9}
    ahead = dict(now)
    del now["asynchronous"]
    for name, recipe in (("now", now), ("ahead", ahead)):
        path = write_recipe(tmp_path / f"{name}.yaml", recipe)
        zygote.run_ranks(2, "train", path, "--out", tmp_path / name)
    assert alike(tmp_path / "now", tmp_path / "ahead") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_change_no_byte(
    seed: int, zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Workers and trainer are killed at moments that nobody chose, and the run goes on until it is finished."""
    rng, run, done = random.Random(seed), tmp_path / "run", tmp_path / "run" / "final_results.json"
    trainer = zygote.start("train", write_recipe(tmp_path / "ahead.yaml", written(model, threads=1)), "--out", run)
    workers, trainers = 0, 0
    while not done.exists():
        time.sleep(rng.uniform(0.5, 4.0))
        if rng.random() < 0.6:
            workers += kill_worker(trainer, rng) if workers < 8 else 0
        elif trainers < 3 and run.exists():
            trainers += 1
            trainer.kill()
        if not is_alive(trainer.pid) and not done.exists():  # killed, or its workers were too often
            pids = workers_of(trainer.pid)
            trainer.wait()
            assert gone(pids)
            trainer = zygote.start("train", run, "--resume")
    trainer.wait()
    assert workers + trainers > 0
    same(undisturbed, run)


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_its_draw_repeated(
    zygote: Zygote, model: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, ahead = tmp_path / "run", written(model, threads=1, workers=1, ticket_seconds=5)
    trainer = zygote.start("train", write_recipe(tmp_path / "ahead.yaml", ahead), "--out", run)
    trainer.until(lambda: steps_of(run) >= 3, "the third step")
    (worker,) = workers_of(trainer.pid)
    os.kill(worker, signal.SIGSTOP)
    assert trainer.wait() == 0
    assert f"rollout worker 0 (process {worker}) did not answer within 5 s; draw" in trainer.said()
    same(undisturbed, run)


@pytest.mark.slow
def test_two_ranks_share_the_pool_of_the_first(zygote: Zygote, model: Path, tmp_path: Path) -> None:
    """However many workers; and what is outstanding is in the checkpoint of both."""
    ahead = {**written(model, threads=1), "steps": 8}
    runs = [tmp_path / "one", tmp_path / "three"]
    for run, workers in zip(runs, (1, 3), strict=True):
        ahead["asynchronous"]["workers"] = workers
        zygote.run_ranks(2, "train", write_recipe(tmp_path / "ahead.yaml", ahead), "--out", run)
    same(*runs)
    (runs[0] / "final_results.json").unlink()
    for path in runs[0].glob("checkpoints/step-*"):
        if int(path.name[5:]) > 4:
            shutil.rmtree(path)
    zygote.run_ranks(2, "train", runs[0], "--resume")
    same(*runs)


@pytest.mark.slow
def test_ranks_that_share_a_spread_policy_hand_over_whole_weights(zygote: Zygote, model: Path, tmp_path: Path) -> None:
    """Without clipping, with one pass a rank, spread and whole models compute the same bits."""
    free = {"micro_batch_tokens": 10**6, "max_grad_norm": 1e9}
    found = []
    for sharding, hand_off in (("none", "files"), ("fsdp2", "files"), ("fsdp2", "broadcast")):
        ahead = {**written(model, threads=1, hand_off=hand_off, parts=2), "steps": 4, "distributed": sharding}
        ahead["update"] = {**ahead.get("update", {}), **free}
        run = tmp_path / f"{sharding}-{hand_off}"
        zygote.run_ranks(2, "train", write_recipe(tmp_path / f"{run.name}.yaml", ahead), "--out", run)
        found.append({file.relative_to(run): file.read_bytes() for file in sorted(run.rglob("*.safetensors"))})
    for other in found[1:]:
        assert found[0].keys() == other.keys()
        assert [name for name in found[0] if found[0][name] != other[name]] == []
