"""What comes through the pipe of a child: an answer to the request that was asked, or the end of the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunFailed, UserError
from whet.records import Example, Score
from whet.tasks.grading import process
from whet.tasks.grading.graders import WorkerGrader
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled
from whet.tasks.grading.serving import Outbox
from whet.tasks.grading.wire import At, Failure, read_ready, unpack_reply

REWARDS = r"""
import fcntl, multiprocessing, os, stat, subprocess, sys, threading, time
calls = 0

def forks(completions, **columns):  # as in the run that trained on the scores of the step before
    global calls
    calls += 1
    os.fork()
    return [float(calls)] * len(completions)
def waits(completions, **columns):
    copy = os.fork()
    if copy: os.waitpid(copy, 0)
    return [1.0] * len(completions)
def raises(completions, **columns):
    copy = os.fork()
    if copy == 0: raise ValueError("in the copy")
    os.waitpid(copy, 0)
    return [1.0] * len(completions)
def late(completions, **columns):
    time.sleep(0.05 if os.fork() else 0.3)
    return [1.0] * len(completions)
def honest(completions, **columns):
    copy = os.fork()
    if copy == 0: os._exit(0)
    os.waitpid(copy, 0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        lengths = pool.map(len, completions)
    said = subprocess.run([sys.executable, "-S", "-c", "print(7)"], capture_output=True, check=True).stdout
    return [float(length + int(said)) for length in lengths]

def pipe():
    for fd in range(3, 64):
        try: mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
        except OSError: continue
        if stat.S_ISFIFO(mode) and flags & os.O_ACCMODE == os.O_WRONLY: return fd
def writes_later(line, note):
    def write():
        os.write(pipe(), line)
        open(note, "w").close()
    threading.Timer(0.1, write).start()
def forges_next(completions, note, **columns):
    writes_later(b'{"request": 2, "scores": [{"reward": 99.0, "parts": {}}]}\n', note[0])
    return [1.0] * len(completions)
def half_a_line(completions, note, **columns):
    writes_later(b'{"request": 2, ', note[0])
    return [1.0] * len(completions)
def answers_itself(completions, **columns):
    os.write(pipe(), b'{"request": 1, "scores": [{"reward": "high", "parts": {}}]}\n')
    return [1.0] * len(completions)
def reports(completions, **columns):
    while True: os.write(pipe(), b'{"request": 1, "at": "reports", "row": null}\n')
def closes(completions, **columns):
    os.closerange(3, 64)
    return [1.0] * len(completions)
"""

WRITES_LATER = ("forges_next", "half_a_line")
ROW = [Example(id="e", prompt="1+0=", answer="1")]
Make = Callable[[str], WorkerGrader]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    (tmp_path / "rewards.py").write_text(REWARDS)
    graders: list[WorkerGrader] = []

    def make(name: str) -> WorkerGrader:
        rewards = [(f"{tmp_path / 'rewards.py'}:{name}", 1.0)]
        graders.append(WorkerGrader("arithmetic", {}, rewards, time_limit_seconds=20.0))
        return graders[-1]

    yield make
    for grader in graders:
        grader.close()


def grade_on(grader: WorkerGrader, *, wait_for: Path | None = None, counts: bool = False) -> None:
    """Batch after batch, each of which must get its own score, until something is noticed: a copy may take its time."""
    deadline = time.monotonic() + 20
    rows = [replace(ROW[0], columns={"note": str(wait_for)})]
    for batch in count(1):
        assert grader.grade(rows, ["a"])[0].reward == (batch if counts else 1.0)
        while wait_for and not wait_for.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("name", "came"),
    [
        ("forks", r"the reply of a forked copy|a reply to request \d+ instead of request \d+"),
        ("waits", "the reply of a forked copy"),
        ("raises", "the reply of a forked copy"),
        ("late", r"a reply to request 1 instead of request \d+"),
        ("forges_next", r"""'\{"request": 2, .*, before request 2 was sent|.*instead of request 1"""),
        ("half_a_line", r"""'\{"request": 2, ', before request 2 was sent|.*not JSON"""),
        ("answers_itself", "something else than a score for row 0"),
        ("reports", "too many progress reports"),
    ],
)
def test_a_reward_that_answers_twice_or_by_itself_ends_the_run(
    make: Make, tmp_path: Path, name: str, came: str
) -> None:
    with pytest.raises(
        RunFailed, match=rf"reward function .*{name} broke the protocol of its worker, which sent ({came}): "
    ):
        grade_on(make(name), wait_for=tmp_path / "note" if name in WRITES_LATER else None, counts=name == "forks")


def test_a_copy_says_so_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ends)
    with (tmp_path / "said").open("w") as stream:
        Outbox(stream=stream, owner=os.getpid()).send(3, {"ready": True})
        with pytest.raises(SystemExit) as end:
            Outbox(stream=stream, owner=os.getpid() + 1).send(4, {"ready": True})
    assert end.value.code == 0
    said = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert said == [{"ready": True, "request": 3}, {"forked": True, "request": 4}]


def test_processes_that_end_by_themselves_are_welcome(make: Make) -> None:
    grader = make("honest")
    assert [grader.grade(ROW, ["abc"])[0].reward for _ in range(2)] == [10.0, 10.0]


def test_a_reward_that_closes_the_pipe_is_named(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    ended = "(ended with exit code 1|closed its pipe)"
    with pytest.raises(RunFailed, match=f"reward function closes ended its process: the worker {ended}"):
        make("closes").grade(ROW, ["a"])
    assert "Traceback" not in capfd.readouterr().err


def test_a_module_that_forks_when_loaded(tmp_path: Path) -> None:
    (tmp_path / "forking.py").write_text("import os\nos.fork()\ndef f(completions): return [1.0]")
    grader = WorkerGrader("arithmetic", {}, [(f"{tmp_path / 'forking.py'}:f", 1.0)], time_limit_seconds=20.0)
    with pytest.raises(RunFailed, match=r"f broke the protocol of its worker, which sent (the|a) reply "):
        grade_on(grader)
    grader.close()


@pytest.mark.parametrize(
    ("line", "came"),
    [
        (b"garbage", "'garbage', which is not JSON$"),
        (b"", "'', which is not JSON$"),
        (b'{"request": 0, "ready": tr', "which is not JSON$"),
        (b'\xff\xfe{"request": 0}', r"which is not JSON$"),
        ('{"request": 0}'.encode("utf-16"), "which is not JSON$"),
        (b'{"request": 0, "scores": [NaN]}', "which is not JSON$"),
        (b'{"a":' * 100_000, " …, which is not JSON$"),
        (b'{"request": ' + b"1" * 5000 + b"}", " …, which is not JSON$"),
        (b"[]", r"'\[\]', which is not a JSON object$"),
        (b"null", "which is not a JSON object$"),
        (b'{"ready": true}', "which has no request number$"),
        (b'{"request": "0", "ready": true}', "which has no request number$"),
        (b'{"request": false, "ready": true}', "which has no request number$"),
        (b'{"request": 7, "ready": true}', "a reply to request 7 instead of request 0$"),
        (b'{"request": -1, "ready": true}', "a reply to request -1 instead of request 0$"),
    ],
    ids=range(15),
)
def test_lines_that_are_no_answer(tmp_path: Path, line: bytes, came: str) -> None:
    (tmp_path / "line").write_bytes(line + b"\n")
    child = Child(("sh", "-c", 'read request; cat "$0"; sleep 60', str(tmp_path / "line")))
    child.send({}, deadline=time.monotonic() + 20)
    with pytest.raises(ChildGarbled, match=came) as caught:
        child.receive(deadline=time.monotonic() + 20)
    child.kill()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_line_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LINE_BYTES", 2**18)
    child = Child(("sh", "-c", "read request; cat /dev/zero"))
    child.send({}, deadline=time.monotonic() + 20)
    with pytest.raises(ChildGarbled, match="a line of more than 262,144 bytes"):
        child.receive(deadline=time.monotonic() + 20)
    with pytest.raises(ChildGarbled, match="before request 1 was sent"):
        child.send({}, deadline=time.monotonic() + 20)
    child.kill()


def test_lines_are_put_together_and_taken_apart() -> None:
    """Two answers in one piece, and one in three pieces."""
    script = """read a; printf '{"request": 0, "n": 1}\\n{"request": 0, "n": 2}\\n{"req'; sleep 0.1
                printf 'uest": 0, "n"'; sleep 0.1; printf ': 3}\\n'; sleep 60"""
    child = Child(("sh", "-c", script))
    child.send({}, deadline=time.monotonic() + 20)
    assert [child.receive(deadline=time.monotonic() + 20)["n"] for _ in range(3)] == [1, 2, 3]
    child.kill()


@pytest.mark.parametrize(
    ("end", "how", "code"),
    [
        ("exit 3", "ended with exit code 3", 3),
        ("kill -9 $$", "was killed by SIGKILL", -9),
        ("kill -40 $$", "was killed by signal 40", -40),
    ],
)
def test_how_a_child_ended_is_said(end: str, how: str, code: int) -> None:
    child = Child(("sh", "-c", f"read request; {end}"))
    child.send({}, deadline=time.monotonic() + 20)
    with pytest.raises(ChildDied, match=how) as caught:
        child.receive(deadline=time.monotonic() + 20)
    child.kill()
    assert caught.value.code == code


GOOD = {"reward": 1, "parts": {"a": 0.5}}


def test_replies_become_what_they_mean() -> None:
    assert read_ready({"ready": True, "wants_samples": False}) is False
    with pytest.raises(UserError, match=r"^two lines$"):
        read_ready({"user_error": "two\n lines"})
    with pytest.raises(UserError, match=r"^no$"):
        unpack_reply({"user_error": "no"}, 1)
    assert unpack_reply({"at": "f", "row": None}, 1) == At(function="f", row=None)
    assert unpack_reply({"failed": "f\ngave", "row": 2, "traceback": "t\n"}, 3) == Failure(
        message="f gave", row=2, traceback="t\n"
    )
    assert unpack_reply({"scores": [GOOD, GOOD]}, 2) == [Score(reward=1.0, parts={"a": 0.5})] * 2


@pytest.mark.parametrize(
    ("reply", "came"),
    [
        ({}, "an object with the keys"),
        ({"ready": True}, "an object with the keys"),
        ({"scores": [GOOD], "at": "f"}, "an object with the keys"),
        ({"at": "f"}, "an object with the keys"),
        ({"at": 3, "row": 0}, "an object with the keys"),
        ({"at": "f", "row": True}, "an object with the keys"),
        ({"failed": "f", "row": 1, "traceback": ""}, "an object with the keys"),  # there is only row 0
        ({"failed": "f", "row": -1, "traceback": ""}, "an object with the keys"),
        ({"failed": None, "row": 0, "traceback": ""}, "an object with the keys"),
        ({"user_error": ["f"]}, "an object with the keys"),
        ({"forked": True}, "the reply of a forked copy"),
        ({"x" * 10_000: 1}, "an object with the keys"),
        ({"scores": {"0": GOOD}}, "an object with the keys"),
        ({"scores": []}, "0 scores for 1 completions"),
        ({"scores": [GOOD, GOOD]}, "2 scores for 1 completions"),
        *(
            ({"scores": [score]}, "something else than a score for row 0")
            for score in (
                None,
                1.0,
                {"reward": 1.0},
                {"parts": {}},
                {**GOOD, "more": 1},
                *({"reward": wrong, "parts": {}} for wrong in ("1", None, True, [1], 1e999, 1.1e15, -(10**400))),
                *({"reward": 0.0, "parts": {"p": wrong}} for wrong in ("1", None, False, {}, 1e999, 10**400)),
                {"reward": 0.0, "parts": []},
            )
        ),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_objects_that_are_no_answer(reply: dict[str, Any], came: str) -> None:
    with pytest.raises(ChildGarbled, match=came) as caught:
        unpack_reply(reply, 1)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("reply", [{}, {"ready": 1}, {"scores": []}, {"at": "f", "row": None}, {"forked": True}])
def test_a_worker_that_is_not_ready(reply: dict[str, Any]) -> None:
    with pytest.raises(ChildGarbled):
        read_ready(reply)
