"""A reward model in worker processes: the numbers of one process, whatever happens to workers."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.test_model_reward import EXAMPLES, HALVES, TASK, TOKENIZER, judge, rewarded  # noqa: F401 - a fixture
from whet.errors import RunFailed, UserError
from whet.models.reward.scoring import ScoredText, Scorer, load_scorer
from whet.models.reward.settings import RewardSettings, write_settings
from whet.tasks.loading import guarded_task
from whet.train.reward_workers import pooled_scorer
from whet.train.reward_workers.loaded import Agreed, Loaded
from whet.train.reward_workers.pass_process import MEMORY, _told
from whet.train.reward_workers.pass_worker import PassSetup, PassWorker, _numbers
from whet.train.reward_workers.pooled_scorer import PassPool, PooledScorer
from whet.train.setup.reward_grader import build_grader, follow_wanted

CPU = torch.device("cpu")
THREADS = torch.get_num_threads()


def many(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Prompts, four completions of each, of very different lengths."""
    rng = random.Random(seed)
    digits = lambda most: "".join(rng.choice("0123456789") for _ in range(rng.randint(1, most)))  # noqa: E731
    prompts = [digits(6) + ">" for _ in range(count)]
    return [prompt for prompt in prompts for _ in range(4)], [digits(12) for _ in range(4 * count)]


class FewTokens(PooledScorer):
    """Makes many small passes, so that there is something to divide."""

    pass_tokens = 24  # type: ignore[assignment]


@pytest.fixture
def make(judge: Path) -> Iterator[Callable[..., FewTokens]]:  # noqa: F811
    pools: list[PassPool] = []

    def made(count: int, *, directory: Path = judge, seconds: float = 60.0) -> FewTokens:
        pools.append(PassPool(directory, ("cpu",), count, threads=THREADS, limit_seconds=seconds))
        return FewTokens(pools[-1], directory)

    yield made
    for pool in pools:
        pool.close()


def here(directory: Path) -> Scorer:
    return load_scorer(directory, CPU, micro_batch_tokens=FewTokens.pass_tokens)


def pids(scorer: PooledScorer) -> list[int]:
    return [worker._child.pid for worker in scorer.pool._workers if worker._child is not None]


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_give_the_bits_of_one_process_and_outlive_kills_and_changes_of_their_number(
    make: Callable[..., FewTokens],
    judge: Path,  # noqa: F811
) -> None:
    rows = many(12)
    plain = here(judge)
    expected = plain.score(*rows)
    scorer, notes = make(2), list[str]()
    scorer.pool.report(notes.append)
    before = pids(scorer)
    assert len(before) == 2
    assert scorer.score(*rows) == expected  # floats, bit for bit
    assert scorer.truncated == plain.truncated
    os.kill(before[0], signal.SIGKILL)
    assert scorer.score(*rows) == expected
    assert [before[0] in pids(scorer), before[1] in pids(scorer)] == [False, True]
    (note,) = notes
    assert re.fullmatch(
        rf"reward worker \(process {before[0]}, cpu\) was killed by SIGKILL \(if memory was short: the machine's\); "
        r"its \d+ texts are scored by another one",
        note,
    )
    scorer.pool.resize(1)
    assert len(pids(scorer)) == 1
    assert scorer.score(*rows) == expected
    left = pids(scorer)
    scorer.pool.close()
    assert not any(map(is_alive, [*before, *left]))


@pytest.mark.slow
def test_kills_at_random_moments_change_no_bit(make: Callable[..., FewTokens], judge: Path) -> None:  # noqa: F811
    rows, rng = many(60, seed=4), random.Random(9)
    expected, scorer, notes = here(judge).score(*rows), make(3), list[str]()
    scorer.pool.report(notes.append)
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.wait(rng.uniform(0.0, 0.8)):
            if found := pids(scorer):
                os.kill(rng.choice(found), signal.SIGKILL)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for round_number in range(4):
            if round_number:
                scorer.pool.resize(rng.randint(1, 4))
            try:
                assert scorer.score(*rows) == expected
            except RunFailed as error:  # five kills of one pass are told, and no number is made up
                assert "have lost 5 workers" in str(error)  # noqa: PT017
                return
    finally:
        is_over.set()
        thread.join()
    assert notes


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_its_texts_sent_again(
    make: Callable[..., FewTokens],
    judge: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, scorer, notes = many(2), make(1, seconds=2.0), list[str]()
    scorer.pool.report(notes.append)
    (worker,) = pids(scorer)
    os.kill(worker, signal.SIGSTOP)
    assert scorer.score(*rows) == here(judge).score(*rows)
    assert notes[0].startswith(
        f"reward worker (process {worker}, cpu) did not answer within 2 s (reward.model.pass_seconds); its "
    )
    assert not is_alive(worker)
    monkeypatch.setattr(pooled_scorer, "MOST_LOSSES", 1)
    (worker,) = pids(scorer)
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(
        RunFailed, match=rf"process {worker}, cpu\) was killed by SIGKILL .*; these \d+ texts have lost 1"
    ):
        scorer.score(*rows)
    assert pids(scorer) == []


@pytest.mark.slow
def test_a_model_that_changes_under_a_run_is_refused(
    make: Callable[..., FewTokens],
    judge: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    shutil.copytree(judge, tmp_path / "judge")
    scorer = make(1, directory=tmp_path / "judge")
    write_settings(tmp_path / "judge", RewardSettings(kind="outcome"))
    os.kill(pids(scorer)[0], signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"loaded another model from .*judge than the workers before"):
        scorer.score(*many(1))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["empty", "gone", "language model"])
def test_a_directory_that_is_no_reward_model_is_refused_with_its_sentence(
    wrong: str,
    make: Callable[..., FewTokens],
    tmp_path: Path,
) -> None:
    from tests.small import small_model

    directory = tmp_path / "model"
    if wrong != "gone":
        directory.mkdir()
    if wrong == "language model":
        policy, tokenizer = small_model()
        policy.save(directory)
        tokenizer.save(directory)
    with pytest.raises(UserError) as here_error:
        load_scorer(directory, CPU)
    with pytest.raises(UserError) as there:
        make(2, directory=directory)
    assert str(there.value) == str(here_error.value)


class FakeChild:
    """Answers what a test says."""

    pid = 7

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def send(self, message: Any, *, deadline: float) -> None:
        self.message = message

    def receive(self, *, deadline: float) -> Any:
        return self.reply

    def end(self) -> None: ...

    def kill(self) -> None: ...


TEXTS = [
    ScoredText(tokens=(1, 2, 3), prompt=1, places=(2,), cut=0),
    ScoredText(tokens=(1,), prompt=0, places=(), cut=0),
]


def answered(reply: Any) -> list[float]:
    worker = PassWorker(PassSetup(directory="d", device="cpu", threads=1), Agreed(Path("d")), limit_seconds=1.0)
    worker._child = FakeChild(reply)  # type: ignore[assignment]
    return worker.read(TEXTS)


def test_running_out_of_memory_is_told_in_a_sentence() -> None:
    def greedy() -> Any:
        return torch.empty(2**55)

    reply = _told(greedy)
    assert reply["kind"] == MEMORY
    with pytest.raises(RunFailed) as error:
        answered(reply)
    assert re.match(
        r"reward worker \(process 7, cpu\) ran out of memory while it read 2 texts of up to 3 tokens \(.*allocate "
        r"memory.*\): use fewer workers \(reward.model.workers, or the file reward_workers of the run\), or a smaller",
        str(error.value),
    )
    with pytest.raises(RuntimeError, match="size"):  # other errors end the worker
        _told(lambda: torch.ones(2) @ torch.ones(3))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("reply", [{}, {"scores": 1.0}, {"scores": []}, {"scores": [1.0, 2.0]}, {"scores": [True]}])
def test_an_answer_that_is_none_counts_as_a_loss(reply: Any) -> None:
    with pytest.raises(pooled_scorer.WorkerLost, match=r"process 7, cpu.* gave an answer that is none"):
        answered(reply)


def test_what_an_answer_is() -> None:
    assert answered({"scores": [0.5]}) == [0.5]
    assert _numbers([], 0) == []


class Nobody:
    """A worker without a process."""

    is_loaded = True

    def start(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


def test_no_more_workers_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_scorer, "PassWorker", lambda *_, **__: Nobody())
    pool = PassPool(Path("d"), ("cpu",), 2, threads=1, limit_seconds=1.0)
    loaded = Loaded(settings={}, context=8, pass_tokens=8, fingerprint="f", size=1_500_000_000)
    pool.agreed.accept(loaded, "it")
    monkeypatch.setattr(pooled_scorer, "available_memory", lambda: 7_000_000_000)  # three of 2.0 GB
    notes: list[str] = []
    pool.report(notes.append)
    pool.resize(256)
    assert len(pool._workers) == 5
    assert notes == ["reward workers: 5, not 256, because there is no memory for more of 2.0 GB"]
    monkeypatch.setattr(pooled_scorer, "available_memory", lambda: 0)
    pool.resize(6)
    assert len(pool._workers) == 5  # nor does one leave
    pool.resize(3)
    assert len(pool._workers) - pool._leaving == 3
    assert len(notes) == 2
    with pytest.raises(
        RunFailed, match=r"reward.model.workers is 3, and after the first one there is memory for 0 more"
    ):
        pool.start()


def test_available_memory_is_read_where_the_system_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       100 kB\nMemAvailable:    7 kB\n")
    monkeypatch.setattr(pooled_scorer, "MEMORY", tmp_path / "meminfo")
    assert pooled_scorer.available_memory() == 7168
    monkeypatch.setattr(pooled_scorer, "MEMORY", tmp_path / "none")
    assert pooled_scorer.available_memory() is None


def test_a_grader_of_functions_and_a_reward_model_follows_one_number(
    judge: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "rewards.py").write_text(HALVES)
    functions = [{"use": f"{tmp_path / 'rewards.py'}:halves", "weight": 0.5}]
    rows = EXAMPLES, [example.answer for example in EXAMPLES]
    task = guarded_task(TASK.name, TASK.options)
    alone = rewarded(TASK, {"model": str(judge), "functions": functions})
    with closing(build_grader(alone, CPU, task, TOKENIZER)) as grader:
        expected = grader.grade(*rows)
    both = {"model": {"path": str(judge), "workers": 1}, "functions": functions, "workers": 2}
    wanted: list[int | None] = [None, 3]
    with closing(build_grader(rewarded(TASK, both), CPU, task, TOKENIZER)) as grader:
        follow_wanted(grader, lambda: wanted.pop(0) if wanted else None, lambda _: None)
        assert grader.grade(*rows) == expected
        pools = grader._scorer.pool, grader._inner  # type: ignore[attr-defined]
        assert [len(pool._workers) for pool in pools] == [1, 2]
        assert grader.submit(*rows, None)() == expected
        assert [len(pool._workers) for pool in pools] == [3, 3]
        found = pids(grader._scorer)  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while any(map(is_alive, found)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found
    assert not any(map(is_alive, found))
