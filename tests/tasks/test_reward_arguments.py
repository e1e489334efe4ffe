"""TRL's whole signature: a reward function written for it runs unchanged, in this process and in a worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.imports import passing
from whet.records import Example, Sampled, Score
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import make_grader
from whet.tasks.grading.process import ChildGarbled
from whet.tasks.grading.reward_arguments import (
    EXTRA_CHARACTERS,
    MOST_NAMES,
    Logged,
    NotLoggable,
    are_extras,
    are_metrics,
    plain_value,
)
from whet.tasks.grading.wire import pack_batch, unpack_batch, unpack_reply

REWARDS = '''
import asyncio

async def whole(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, difficulty, **kwargs):
    """All that TRL passes, in one asynchronous function."""
    await asyncio.sleep(0)
    assert sorted(kwargs) == ["answer", "finish", "token_counts"], sorted(kwargs)
    log_extra("half", [c[: len(c) // 2] for c in completions])
    log_metric("longest", max(len(c) for c in completions))
    log_metric("longest", 0)
    return [len(ids) + trainer_state.global_step / trainer_state.max_steps + d
            for ids, d in zip(completion_ids, difficulty)]

def ends(completions, finish, token_counts): return [float(f == "stop") * n for f, n in zip(finish, token_counts)]
def ids(completions, completion_ids=None): return [0.0 if completion_ids is None else 1.0 for _ in completions]
def needs_ids(completions, completion_ids): return [0.0] * len(completions)
def no_metric(completions, log_metric): log_metric("x", float("nan")); return [0.0] * len(completions)
def too_few(completions, log_extra): log_extra("x", [1]); return [0.0] * len(completions)
def nothing(completions, trainer_state): return [trainer_state.loss] * len(completions)
'''
ROWS = [Example(id=str(i), prompt="p", answer="a", columns={"difficulty": i}) for i in range(2)]
TEXTS = ["word", "longer"]
SAMPLED = Sampled(tokens=((5, 6, 7), (8,)), finish=("stop", "length"), step=3, steps=12)


@pytest.fixture(params=["worker", "in process"])
def graded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Grades with a function of the file above."""
    (tmp_path / "rewards.py").write_text(REWARDS)

    def grade(name: str, rows: Any = ROWS, sampled: Sampled | None = SAMPLED) -> list[Score]:
        place = tmp_path / "rewards.py" if request.param == "worker" else "<python>"
        with closing(make_grader("arithmetic", {}, [(f"{place}:{name}", 1.0)], 20.0)) as grader:
            return grader.grade(rows, TEXTS, sampled)

    space: dict[str, Any] = {}
    exec(REWARDS, space)
    with passing({name: value for name, value in space.items() if callable(value)}):
        yield grade


def test_all_that_trl_passes(graded: Any) -> None:
    first, second = graded("whole")
    assert [first.reward, second.reward] == [3 + 0.25 + 0, 1 + 0.25 + 1]
    assert [first.extra, second.extra] == [{"half": "wo"}, {"half": "lon"}]
    assert first.logged == second.logged == {"longest": 3.0}  # the mean of 6 and 0


def test_how_completions_ended_and_how_long_they_are(graded: Any) -> None:
    assert [score.reward for score in graded("ends")] == [3.0, 0.0]
    claimed = [Example(id="e", prompt="p", answer="a", columns={"finish": "stop"})] * 2
    assert [score.reward for score in graded("ends", claimed)] == [3.0, 1.0]  # a column of the data comes first


def test_what_is_not_known_is_not_offered(graded: Any) -> None:
    assert [score.reward for score in graded("ids")] == [1.0, 1.0]
    assert [score.reward for score in graded("ids", sampled=None)] == [0.0, 0.0]
    unknown = Sampled(tokens=((-1,), (-1,)), finish=("stop", "stop"), step=0, steps=1)  # of a server
    assert [score.reward for score in graded("ids", sampled=unknown)] == [0.0, 0.0]
    with pytest.raises(UserError, match="requires 'completion_ids', which is known only of completions that were"):
        graded("needs_ids", sampled=None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_metric", r"log_metric\('x', nan\): the value must be a finite number"),
        ("too_few", "log_extra got 1 values of 'x' for 2 completions"),
        ("nothing", "no attribute 'loss'"),
    ],
)
def test_what_cannot_be_logged_or_read_is_an_error(graded: Any, name: str, message: str) -> None:
    with pytest.raises(GradingFailed, match=message):
        graded(name)


def test_a_batch_travels_whole() -> None:
    examples, texts, sampled = unpack_batch(pack_batch(ROWS, TEXTS, SAMPLED))
    assert (examples, texts, sampled) == (ROWS, TEXTS, SAMPLED)
    assert unpack_batch(pack_batch(ROWS, TEXTS))[2] is None


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers())))
def test_any_value_of_a_column_passes_the_wire(value: Any) -> None:
    assert are_extras({"x": plain_value(value)})


@pytest.mark.parametrize(
    ("extra", "logged"),
    [
        ({"x": "y" * (EXTRA_CHARACTERS + 1)}, {}),
        ({"x": [1]}, {}),
        ({"x" * 101: 1}, {}),
        ({str(i): 1 for i in range(MOST_NAMES + 1)}, {}),
        ([], {}),
        ({}, {"x": "1"}),
        ({}, {"x": True}),
        ({}, {"x": None}),
        ({}, {"x": math.inf}),
    ],
)
def test_a_reply_that_no_worker_would_send_is_refused(extra: Any, logged: Any) -> None:
    score = {"reward": 1.0, "parts": {}, "extra": extra, "logged": logged}
    with pytest.raises(ChildGarbled, match="something else than a score for row 0"):
        unpack_reply({"scores": [score]}, 1)
    assert not (are_extras(extra) and are_metrics(logged))


def test_names_are_bounded() -> None:
    logged = Logged()
    log_metric = logged.callbacks()["log_metric"]
    for i in range(MOST_NAMES):
        log_metric(str(i), 1)
    log_metric("0", 3)
    assert logged.means()["0"] == 2.0
    for name in ("one more", "", "x" * 101, "line\nbreak", 3):
        with pytest.raises(NotLoggable):
            log_metric(name, 1)
