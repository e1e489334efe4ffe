"""Rewards that are objects run in this process, with the scores and the sentences of the worker."""

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from whet.errors import UserError
from whet.imports import passing
from whet.records import Example
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import InProcessGrader, WorkerGrader, make_grader

ROWS = [Example(id=f"r{i}", prompt=f"{i}+1=", answer=str(i + 1), columns={"level": i}) for i in range(3)]
SOURCE = """
def right(completions, answer):
    return [float(a == b) for a, b in zip(completions, answer)]
def levels(level, **others):
    return iter(level)
async def slow(completions):
    import asyncio
    await asyncio.sleep(0)
    return [0.5 for _ in completions]
def picky(completions):
    if "3" in completions: raise ValueError("three")
    return [1] * len(completions)
def short(completions): return [1.0]
def together(completions):
    if len(completions) > 1: raise RuntimeError("a crowd")
    return [1.0]
def absent(elsewhere): return [1.0]
def words(completions): return ["one"] * len(completions)
"""
NAMES = ("right", "levels", "slow", "picky", "short", "together", "absent", "words")
TEXTS = ["1", "x", "3"]


@pytest.fixture
def objects() -> Iterator[dict[str, Any]]:
    """The same functions as in the file, which no other process could find."""
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    with passing({name: names[name] for name in NAMES}):
        yield names


def _told(error: Exception) -> str:
    """Without the name of the file, which objects passed from Python do not have."""
    return re.sub(r"failed at \S+:(\d+) in", r"failed at line \1 in", str(error).replace("<python>", "PLACE"))


def outcome(grader: Any, texts: Sequence[str] = TEXTS) -> Any:
    with closing(grader):
        try:
            return grader.grade(ROWS, texts)
        except (GradingFailed, UserError) as error:
            return type(error), _told(error), getattr(error, "example", None)


@pytest.mark.parametrize("chosen", [("right",), ("right", "levels", "slow"), *((name,) for name in NAMES[3:])])
def test_it_says_what_the_worker_says(objects: dict[str, Any], tmp_path: Path, chosen: tuple[str, ...]) -> None:
    (tmp_path / "rewards.py").write_text(SOURCE)
    weights = (1.0, 2.0, -0.5)
    here = make_grader("arithmetic", {}, [(f"<python>:{n}", w) for n, w in zip(chosen, weights, strict=False)], 20.0)
    assert isinstance(here, InProcessGrader)
    specs = [(f"{tmp_path / 'rewards.py'}:{n}", w) for n, w in zip(chosen, weights, strict=False)]
    there = make_grader("arithmetic", {}, specs, 20.0)
    assert isinstance(there, WorkerGrader)
    assert outcome(here) == outcome(there)


@contextmanager
def graded_by(function: Any) -> Iterator[InProcessGrader]:
    with passing({"f": function}), closing(InProcessGrader("arithmetic", {}, [("<python>:f", 1.0)])) as grader:
        yield grader


def test_a_keyboard_interrupt_is_the_users() -> None:
    def interrupted(completions: list[str]) -> list[float]:
        raise KeyboardInterrupt("second signal (SIGINT)")

    with graded_by(interrupted) as grader, pytest.raises(KeyboardInterrupt, match="second signal"):
        grader.grade(ROWS, TEXTS)


def test_an_exit_is_blamed_on_its_row() -> None:
    def leaves(completions: list[str]) -> list[float]:
        if "x" in completions:
            raise SystemExit(4)
        return [0.0] * len(completions)

    with graded_by(leaves) as grader, pytest.raises(GradingFailed, match=r"f called sys.exit\(4\) \(example r1, row 1"):
        grader.grade(ROWS, TEXTS)


def test_alarms_of_the_program_stay_and_those_of_rewards_go() -> None:
    def sets_an_alarm(completions: list[str]) -> list[float]:
        if not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 600)
        return [0.0] * len(completions)

    with graded_by(sets_an_alarm) as grader:
        grader.grade(ROWS, TEXTS)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        try:
            signal.setitimer(signal.ITIMER_REAL, 500)
            grader.grade(ROWS, TEXTS)
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def test_asynchronous_functions_share_one_loop_that_is_not_the_callers() -> None:
    loops = []

    async def notes(completions: list[str]) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [0.0] * len(completions)

    async def notebook() -> None:
        with graded_by(notes) as grader:
            grader.grade(ROWS, TEXTS)
            grader.grade(ROWS, TEXTS)
            assert asyncio.get_running_loop() not in loops

    asyncio.run(notebook())
    assert len(loops) == 2
    assert loops[0] is loops[1]


def test_arguments_are_copies() -> None:
    def greedy(completions: list[str], level: list[int]) -> list[float]:
        level.clear()
        return [0.0] * len(completions)

    with graded_by(greedy) as grader:
        grader.grade(ROWS, TEXTS)
    assert [row.columns["level"] for row in ROWS] == [0, 1, 2]
