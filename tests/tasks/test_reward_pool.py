"""Several real workers: whole prompts in each, the scores of one, tolerated failures, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.test_grading import gone, wait_until
from whet.errors import UserError
from whet.records import Completion, Example, Prompt, Sampled
from whet.rollout import Scoring
from whet.tasks.grading.elastic import Cancelled
from whet.tasks.grading.failures import GradingFailed, Tolerance
from whet.tasks.grading.graders import WorkerGrader, make_grader
from whet.tasks.grading.pool import WorkerPool
from whet.tasks.protocol import Grader

REWARDS = r"""
import ctypes, os, signal, sys, time

def length(completions, **columns): return [float(len(c)) for c in completions]
def process(completions, **columns): return [float(os.getpid())] * len(completions)
def batch(completions, **columns): return [float(len(completions))] * len(completions)
def rank(completions, prompts, **columns):  # place among the completions of the prompt
    of = lambda prompt: sorted(c for p, c in zip(prompts, completions) if p == prompt)
    return [float(of(p).index(c)) for p, c in zip(prompts, completions)]
def boom(completions, **columns): return [float(len(c)) / (not c.startswith("bad")) for c in completions]
def nan(completions, **columns): return [float("nan") if c.startswith("bad") else float(len(c)) for c in completions]
def dies(completions, **columns):
    if any(c.startswith("bad") for c in completions): os.kill(os.getpid(), signal.SIGKILL)
    return [float(len(c)) for c in completions]
def exits(completions, **columns):
    if any(c.startswith("bad") for c in completions): sys.exit(3)
    return [float(len(c)) for c in completions]
def hangs(completions, **columns):
    while any(c.startswith("bad") for c in completions): time.sleep(0.01)
    return [float(len(c)) for c in completions]
def pairs(completions, **columns):
    if len(completions) > 1 and "odd" in completions: raise ValueError("not together")
    return [float(len(c)) for c in completions]
def sleeps(completions, **columns): time.sleep(1000)
"""

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes graders with functions of the file above, and closes them."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    graders: list[Grader] = []

    def made(*names: str, workers: int = 2, allowed: int = 0, seconds: float = 20.0, size: int | None = None) -> Any:
        rewards = [(f"{tmp_path / 'rewards.py'}:{name}", 1.0) for name in names]
        tolerance = Tolerance(allowed)
        grader = make_grader(
            "arithmetic", {}, rewards, seconds, workers=workers, prompts_per_call=size, tolerance=tolerance
        )
        graders.append(grader)
        return grader, tolerance

    yield made
    for grader in graders:
        grader.close()


def prompts(count: int, group: int) -> list[Example]:
    """Rows of `count` prompts, `group` of each."""
    return [Example(id=f"e{i}", prompt=f"{i}+0=", answer=str(i)) for i in range(count) for _ in range(group)]


TEXTS = ["a", "bb", "ccc", "dddd", "eeeee", "ff", "g", "hhh", "iiii", "jj"]


def test_one_worker_is_a_worker_and_several_are_a_pool(make: Make) -> None:
    assert isinstance(make("length", workers=1)[0], WorkerGrader)
    assert isinstance(make("length", workers=2)[0], WorkerPool)


def test_several_workers_give_the_scores_of_one(make: Make) -> None:
    rows = prompts(5, 2)
    one = make("length", "rank", workers=1)[0].grade(rows, TEXTS)
    assert make("length", "rank", workers=2)[0].grade(rows, TEXTS) == one
    assert make("length", "rank", workers=3, size=1)[0].grade(rows, TEXTS) == one
    assert make("length", "rank", workers=3)[0].grade([], []) == []


def test_a_prompt_stays_together_and_both_workers_work(make: Make) -> None:
    grader, _ = make("process", "batch")
    scores = grader.grade(prompts(5, 2), TEXTS)
    assert [score.parts["batch"] for score in scores] == [4.0] * 4 + [6.0] * 6
    assert len({score.parts["process"] for score in scores}) == 2
    sizes = [score.parts["batch"] for score in make("batch", size=2)[0].grade(prompts(5, 2), TEXTS)]
    assert sizes == [4.0] * 8 + [2.0] * 2


@given(st.integers(0, 200), st.integers(1, 20), st.none() | st.integers(1, 30))
def test_shares_cover_all_prompts_in_order_and_are_fair(count: int, workers: int, size: int | None) -> None:
    pool = WorkerPool(_Nobody, workers, size)
    shares = pool.shares(count)
    assert [prompt for share in shares for prompt in share] == list(range(count))
    sizes = [len(share) for share in shares]
    assert all(sizes)
    if size is None:
        assert len(shares) == min(workers, count)
        assert not sizes or max(sizes) - min(sizes) <= 1
    else:
        assert all(one == size for one in sizes[:-1])
    assert all(low.stop == high.start for low, high in pairwise(shares))


class _Nobody:
    def start(self) -> None: ...

    def grade(self, examples: Any, texts: Any, sampled: Any = None) -> Any: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("name", "workers"), [("boom", 1), ("nan", 2), ("dies", 2), ("exits", 1)])
def test_a_failure_costs_one_row(make: Make, name: str, workers: int) -> None:
    grader, tolerance = make(name, "rank", workers=workers, allowed=2)
    texts = [*TEXTS[:2], "bad2", *TEXTS[3:7], "bad1", *TEXTS[8:]]
    scores = grader.grade(prompts(5, 2), texts)
    assert [i for i, score in enumerate(scores) if score.is_missing] == [2, 7]
    whole = make("length", "rank", workers=1)[0].grade(prompts(5, 2), texts)
    for i, (score, plain) in enumerate(zip(scores, whole, strict=True)):
        if i not in (2, 3, 6, 7):  # prompts 1 and 3, whose other completion has nobody to compare with any more
            assert (score.reward, score.parts["rank"]) == (plain.reward, plain.parts["rank"])
    assert [score.parts["rank"] for score in (scores[3], scores[6])] == [0.0, 0.0]
    first, second = tolerance.take()
    assert [(one.example.id, one.text) for one in (first, second)] == [("e1", "bad2"), ("e3", "bad1")]
    assert f"reward function {name}" in str(first)
    assert first.culprit["example"]["id"] == "e1"
    assert (name in first.traceback) == (name == "boom")
    assert tolerance.take() == []


def test_a_hang_costs_one_row(make: Make) -> None:
    grader, tolerance = make("hangs", workers=1, allowed=1, seconds=0.6)
    scores = grader.grade(prompts(2, 2), ["a", "bad1", "cc", "dd"])
    assert [score.is_missing for score in scores] == [False, True, False, False]
    assert "took longer than 0.6 s" in str(tolerance.take()[0])


def test_one_failure_too_many_is_raised(make: Make) -> None:
    grader, tolerance = make("boom", workers=1, allowed=2)
    grader.grade(prompts(2, 1), ["bad1", "fine"])
    tolerance.used = len(tolerance.take())
    with pytest.raises(GradingFailed, match=r"reward function boom failed at .*\(example e2, row 2 of 3\)"):
        grader.grade(prompts(3, 1), ["bad1", "fine", "bad2"])


def test_none_is_allowed_unless_the_recipe_says_so(make: Make) -> None:
    for workers in (1, 2):
        with pytest.raises(GradingFailed, match=r"reward function boom failed at .*example e1"):
            make("boom", workers=workers)[0].grade(prompts(3, 1), ["fine", "bad1", "fine"])


def test_completions_that_fail_only_together_are_left_out_together(make: Make) -> None:
    grader, tolerance = make("pairs", workers=1, allowed=2)
    scores = grader.grade(prompts(3, 2), ["a", "b", "odd", "even", "c", "d"])
    assert [score.is_missing for score in scores] == [False, False, True, True, False, False]
    assert len(tolerance.take()) == 2


def test_a_worker_that_was_killed_from_outside_costs_nothing_where_failures_are_allowed(make: Make) -> None:
    grader, tolerance = make("process", allowed=1)
    killed = {int(score.reward) for score in grader.grade(prompts(4, 2), TEXTS[:8])}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    again = {int(score.reward) for score in grader.grade(prompts(4, 2), TEXTS[:8])}
    assert not again & killed
    assert tolerance.take() == []


def test_workers_join_and_leave_and_change_no_score(make: Make) -> None:
    """Shares are those of the recipe; those that leave end, also if they were busy."""
    grader, _ = make("length", "rank", "batch", workers=2, size=1)
    asked, rows = iter([None, 5, None, 1, 3]), prompts(10, 1)
    grader.follow(lambda: next(asked))
    found, used, pids = [], [], set()
    for _ in range(5):
        found.append(grader.grade(rows, TEXTS))
        used.append(len(grader._workers) - grader._leaving)
        pids |= {worker._child.pid for worker in grader._workers if worker._child is not None}
    assert used == [2, 5, 5, 1, 3]
    assert all(scores == found[0] for scores in found)
    living = {worker._child.pid for worker in grader._workers if worker._child is not None}
    for pid in pids - living:
        wait_until(lambda pid=pid: gone(pid))
    grader.close()
    for pid in living:
        wait_until(lambda pid=pid: gone(pid))


def test_a_worker_that_is_to_leave_finishes_its_share() -> None:
    started, may_end, closed = threading.Semaphore(0), threading.Event(), []

    class Slow(_Nobody):
        def grade(self, examples: Any, texts: Any, sampled: Any = None) -> list[float]:
            started.release()
            may_end.wait(60)
            return [float(len(text)) for text in texts]

        def close(self) -> None:
            closed.append(self)

    pool = WorkerPool(Slow, 3, 1)
    waiting = [pool.submit(prompts(1, 1), [text], None) for text in ("a", "bb", "ccc", "dddd")]
    for _ in range(3):
        started.acquire()
    pool.resize(1)
    assert not closed
    pool.resize(2)  # one of the two that were to leave stays
    may_end.set()
    assert [given() for given in waiting] == [[1.0], [2.0], [3.0], [4.0]]
    assert len(closed) == 1
    assert len(pool._workers) == 2
    pool.close()
    assert len(closed) == 3


def test_a_wrong_name_is_told_and_leaves_no_worker(make: Make) -> None:
    with pytest.raises(UserError, match="has no 'lenght'; did you mean 'length'"):
        make("lenght")


def workers_of(pid: int) -> list[int]:
    """The living children of a process that grade."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == pid and "whet.tasks.grading.worker" in words and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def test_close_in_the_middle_of_a_batch_ends_all_workers(make: Make) -> None:
    grader, _ = make("sleeps", seconds=500)
    waiting = grader.submit(prompts(1, 1), ["a"], None)
    wait_until(lambda: len(workers_of(os.getpid())) >= 2)
    mine = workers_of(os.getpid())
    time.sleep(0.1)
    grader.close()
    assert all(map(gone, mine))
    with pytest.raises(Cancelled):
        waiting()


def test_ctrl_c_ends_all_workers(make: Make) -> None:
    grader, _ = make("sleeps", seconds=500)
    mine = workers_of(os.getpid())
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        grader.grade(prompts(4, 1), TEXTS[:4])
    assert all(map(gone, mine))


PARENT = """
import sys, time
from whet.records import Example
from whet.tasks.grading.graders import make_grader
grader = make_grader("arithmetic", {}, [(sys.argv[1] + ":" + sys.argv[2], 1.0)], 500.0, workers=3)
print("ready", flush=True)
if sys.argv[2] == "sleeps":
    grader.grade([Example(id=str(i), prompt="p", answer="a") for i in range(3)], ["a"] * 3)
time.sleep(1000)
"""


@pytest.mark.parametrize("name", ["length", "sleeps"], ids=["idle", "busy"])
def test_no_worker_outlives_a_killed_parent(make: Make, tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "rewards.py"), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = workers_of(parent.pid)
        assert len(workers) == 3
        time.sleep(0.2)
        parent.kill()
    wait_until(lambda: all(map(gone, workers)))


def completion(text: str) -> Completion:
    return Completion(tokens=tuple(map(ord, text)), logprobs=(0.0,) * len(text), text=text, finish="stop")


def test_a_share_is_scored_as_soon_as_its_prompts_are_sampled(make: Make) -> None:
    """The last prompt is never sampled before the first share is scored; the scores are those of one call."""
    grader, _ = make("length", "batch", workers=1, size=2)
    examples = [Example(id=f"e{i}", prompt="p", answer="a") for i in range(3)]
    samples = [(Prompt(tokens=(1,), stream=(i,)), [completion("x" * (i + 1))] * 2) for i in range(3)]
    begun: list[list[str]] = []
    submit = grader.submit

    def watched(rows: Any, texts: Any, sampled: Sampled) -> Any:
        begun.append([row.id for row in rows])
        assert (sampled.step, sampled.steps) == (6, 9)
        return submit(rows, texts, sampled)

    grader.submit = watched
    scoring = Scoring(grader, examples, version=6, steps=9)
    assert scoring.is_early
    scoring.on_group(1, samples[1][1])
    assert begun == []
    scoring.on_group(0, samples[0][1])
    assert begun == [["e0", "e0", "e1", "e1"]]  # in the order of the prompts, not of time
    groups = scoring.groups(samples)
    assert begun[1:] == [["e2", "e2"]]
    assert [[r.score.parts["length"] for r in group] for group in groups] == [[1.0] * 2, [2.0] * 2, [3.0] * 2]
    assert [[r.score.parts["batch"] for r in group] for group in groups] == [[4.0] * 2, [4.0] * 2, [2.0] * 2]
