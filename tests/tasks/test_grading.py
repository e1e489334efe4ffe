"""Real workers with real misbehaviour: hangs, crashes, prints, orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from whet.errors import RunFailed, UserError
from whet.records import Example, Message
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import DirectGrader, WorkerGrader, make_grader
from whet.tasks.loading import load_task

REWARDS = r"""
import asyncio, ctypes, math, os, re, signal, subprocess, sys, time

def length(completions, **columns): return [float(len(c)) for c in completions]
def spin(completions, **columns):
    while "bad" in completions: pass
    return [0.0] * len(completions)
def sleep(completions, **columns):
    if "bad" in completions: time.sleep(1000)
    return [0.0] * len(completions)
def regex(completions, **columns):
    return [float(bool(re.match(r"(a+)+$", "a" * 40 + "!"))) if c == "bad" else 0.0 for c in completions]
def swallow(completions, **columns):
    while "bad" in completions:
        try: time.sleep(1000)
        except BaseException: pass
    return [0.0] * len(completions)
def boom(completions, **columns):
    return [1 / (c != "bad") for c in completions]
def nan(completions, **columns): return [math.nan if c == "bad" else 0.0 for c in completions]
def leave(completions, **columns):
    if "bad" in completions: os._exit(7)
    return [0.0] * len(completions)
def exits(completions, **columns):
    if "bad" in completions: sys.exit(3)
    return [0.0] * len(completions)
def crash(completions, **columns):
    if "bad" in completions: ctypes.string_at(0)
    return [0.0] * len(completions)
def together(completions, **columns):
    if len(completions) > 1: raise ValueError("too many at once")
    return [0.0]
def loud(completions, **columns):
    print('{"scores": []}'); sys.stdout.write("no newline"); sys.stdout.flush()
    sys.__stdout__.write("again\n"); os.write(1, b"raw\n"); subprocess.run(["echo", "child"])
    assert sys.stdin.read() == "" and subprocess.run(["cat"], capture_output=True).stdout == b""
    return [1.0] * len(completions)
async def later(completions, **columns):
    await asyncio.sleep(0.01)
    return [4.0] * len(completions)
def column(completions, difficulty): return [float(d) for d in difficulty]
def chat(prompts, completions): return [float(c[0]["content"] == p[0]["content"]) for p, c in zip(prompts, completions)]
def process(completions, **columns): return [float(os.getpid())] * len(completions)
def child(completions, **columns):
    pid = subprocess.Popen(["sleep", "1000"]).pid
    with open(columns["note"][0], "w") as file: file.write(str(pid))
    time.sleep(1000)
def leaves(completions, **columns):
    return [float(subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL).pid)] * len(completions)
def fork_and_die(completions, **columns):
    if os.fork() == 0: time.sleep(1000)
    os._exit(9)
def alarm(completions, **columns):
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try: time.sleep(1000)
    except TimeoutError: return [5.0] * len(completions)
"""

TASK = """
import os, time
from whet.records import Example, Score
class Own:
    name = "own"
    def __init__(self, step: float = 1.0): self.step = step
    def draw(self, count, *, seed): return []
    def held_out(self, count): return []
    def correct(self, example, text): return True
    def score(self, example, text):
        if text == "hang": time.sleep(1000)
        if text == "raise": raise ValueError("cannot score")
        if text == "exit": os._exit(4)
        if text == "nan": return Score(reward=0.0, parts={"p": float("nan")})
        if text == "number": return 1.0
        return Score(reward=self.step * len(text), parts={"length": len(text)})
"""

Make = Callable[..., WorkerGrader]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes graders with functions of the file above, and closes them."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    graders: list[WorkerGrader] = []

    def make(*names: str, seconds: float = 20.0) -> WorkerGrader:
        rewards = [(f"{tmp_path / 'rewards.py'}:{name}", 1.0) for name in names]
        graders.append(WorkerGrader("arithmetic", {}, rewards, time_limit_seconds=seconds))
        return graders[-1]

    yield make
    for grader in graders:
        grader.close()


def rows(count: int, **columns: Any) -> list[Example]:
    return [Example(id=f"e{i}", prompt=f"{i}+0=", answer=str(i), columns=columns) for i in range(count)]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody has collected counts)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_direct_and_worker_give_the_same_scores(tmp_path: Path) -> None:
    task = load_task("arithmetic", {"level": 2})
    examples = task.held_out(20)
    texts = [e.answer if i % 2 else "1" for i, e in enumerate(examples)]
    direct = make_grader("arithmetic", {"level": 2}, [], 5.0)
    assert isinstance(direct, DirectGrader)
    worker = WorkerGrader("arithmetic", {"level": 2}, [], time_limit_seconds=20.0)
    assert worker.grade(examples, texts) == direct.grade(examples, texts)
    assert [s.reward == 1.0 for s in direct.grade(examples, texts)] == [bool(i % 2) for i in range(20)]
    direct.close()
    worker.close()


def test_functions_are_applied_and_the_worker_is_reused(make: Make) -> None:
    grader = make("length", "later", "process")
    first = grader.grade(rows(2), ["abc", "é\n\u2028x"])
    assert [s.parts["length"] for s in first] == [3.0, 4.0]
    assert {s.parts["later"] for s in first} == {4.0}
    again = grader.grade(rows(1), [""])
    assert again[0].parts["process"] == first[0].parts["process"] != os.getpid()
    assert grader.grade([], []) == []


def test_a_large_batch_passes_the_pipe(make: Make) -> None:
    texts = ["x" * 20_000] * 200
    assert [s.reward for s in make("length").grade(rows(200), texts)] == [20_000.0] * 200


@pytest.mark.parametrize("name", ["spin", "sleep", "regex", "swallow"])
def test_a_hang_is_stopped(make: Make, name: str) -> None:
    grader = make("length", name, seconds=0.7)
    began = time.monotonic()
    with pytest.raises(GradingFailed, match=f"reward function {name} took longer than 0.7 s"):
        grader.grade(rows(1), ["bad"])
    assert time.monotonic() - began < 6
    if name == "regex":  # the others end as it does
        assert [s.reward for s in grader.grade(rows(1), ["abc"])] == [3.0]  # a new worker serves the next batch


def test_the_row_that_hangs_is_found(make: Make) -> None:
    """Once for the batch, once for the row."""
    with pytest.raises(GradingFailed, match=r"reward function sleep took longer than 0.7 s") as caught:
        make("length", "sleep", seconds=0.7).grade(rows(4), ["a", "b", "bad", "c"])
    assert (caught.value.example.id, caught.value.text) == ("e2", "bad")
    assert isinstance(caught.value, RunFailed)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "boom",
            r"boom failed at \S+rewards\.py:19 in boom: ZeroDivisionError: .* \(example e1, row 1 of 3\)",
        ),
        ("nan", "reward function nan gave nan for row 1"),
        ("leave", "reward function leave ended its process: the worker ended with exit code 7"),
        ("exits", "reward function exits ended its process: the worker ended with exit code 3"),
        ("crash", "reward function crash ended its process: the worker was killed by SIGSEGV"),
    ],
)
def test_a_failure_names_function_and_row(make: Make, name: str, message: str) -> None:
    with pytest.raises(GradingFailed, match=message) as caught:
        make(name).grade(rows(3), ["a", "bad", "bad"])
    assert (caught.value.example.id, caught.value.text) == ("e1", "bad")
    assert "\n" not in str(caught.value)


def test_rows_that_only_fail_together_name_the_first(make: Make) -> None:
    with pytest.raises(GradingFailed, match="too many at once; no row fails by itself") as caught:
        make("together").grade(rows(3), ["a", "b", "c"])
    assert caught.value.example.id == "e0"


def test_prints_go_to_standard_error_and_break_nothing(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    grader = make("loud")
    assert [s.reward for s in grader.grade(rows(2), ["a", "b"])] == [1.0, 1.0]
    assert [s.reward for s in grader.grade(rows(1), ["a"])] == [1.0]
    out, err = capfd.readouterr()
    assert out == ""
    assert all(piece in err for piece in ('{"scores": []}', "no newline", "again", "raw", "child"))


def test_columns_and_conversations_travel(make: Make) -> None:
    assert [s.reward for s in make("column").grade(rows(2, difficulty=3), ["a", "b"])] == [3.0, 3.0]
    talk = [Example(id="t", prompt=(Message(role="user", content="hé"),), answer="")]
    assert make("chat").grade(talk, ["hé"])[0].reward == 1.0


def test_a_missing_column_and_columns_that_are_no_json_are_the_users_errors(make: Make) -> None:
    with pytest.raises(UserError, match="column requires 'difficulty', which is not a column"):
        make("column").grade(rows(2), ["a", "b"])
    with pytest.raises(UserError, match="the columns of example e0 are not JSON"):
        make("length").grade(rows(1, bag={1, 2}), ["a"])


def test_functions_that_use_alarms_run_in_the_main_thread(make: Make) -> None:
    assert make("alarm").grade(rows(1), ["a"])[0].reward == 5.0


def test_what_a_hanging_function_started_is_killed_with_it(make: Make, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(GradingFailed):
        make("child", seconds=1.0).grade(rows(1, note=str(note)), ["a"])
    wait_until(lambda: gone(int(note.read_text())))


def test_a_death_is_noticed_although_a_fork_keeps_the_pipe_open(make: Make) -> None:
    began = time.monotonic()
    with pytest.raises(GradingFailed, match="ended with exit code 9"):
        make("fork_and_die", seconds=30.0).grade(rows(1), ["a"])
    assert time.monotonic() - began < 10


@pytest.fixture
def own_task(tmp_path: Path) -> Iterator[WorkerGrader]:
    (tmp_path / "own.py").write_text(TASK)
    grader = make_grader(f"{tmp_path / 'own.py'}:Own", {"step": 2.0}, [], 0.8)
    assert isinstance(grader, WorkerGrader)
    yield grader
    grader.close()


def test_a_users_task_is_scored_in_the_worker(own_task: WorkerGrader) -> None:
    scores = own_task.grade(rows(2), ["abc", "a"])
    assert [(s.reward, s.parts) for s in scores] == [(6.0, {"length": 3.0}), (2.0, {"length": 1.0})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hang", "the score of task .* took longer than 0.8 s"),
        ("raise", r"the score of task own failed at \S+own\.py:\d+ in score: ValueError: cannot score"),
        ("exit", "ended its process: the worker ended with exit code 4"),
        ("nan", "the score of task own gave p = nan for row 2"),
        ("number", "it gave a float, not a Score"),
    ],
)
def test_a_users_task_that_fails_names_the_row_at_once(own_task: WorkerGrader, text: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(GradingFailed, match=message) as caught:
        own_task.grade(rows(4), ["a", "b", text, text])
    assert (caught.value.example.id, caught.value.text) == ("e2", text)
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize(
    ("task", "rewards", "limit", "message"),
    [
        ("arithmetic", [("nowhere_at_all:f", 1.0)], 5.0, "importing nowhere_at_all failed"),
        ("arithmetic", [("json:dumps", float("nan"))], 5.0, "the weight must be a finite number"),
        ("arithmetic", [("json:dumps", 1.0)], 0.0, "the time limit of rewards is 0.0 s"),
        ("nowhere_at_all:Task", [], 5.0, "importing nowhere_at_all failed"),
        ("arithmetic", [("math:sqrt", 1.0)], 5.0, "'x' must be accepted by keyword"),
        ("arithmetics", [], 5.0, "did you mean 'arithmetic'"),
    ],
)
def test_wrong_names_are_told_before_the_run(
    task: str, rewards: Sequence[tuple[str, float]], limit: float, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_grader(task, {}, rewards, limit)


def test_options_that_are_no_json_are_the_users_error() -> None:
    with pytest.raises(UserError, match="the options of task own:Own are not JSON"):
        WorkerGrader("own:Own", {"when": object()}, [], time_limit_seconds=1.0)


def test_a_module_that_kills_its_process_when_loaded(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os; os._exit(11)")
    with pytest.raises(RunFailed, match=r"the worker that loads reward function .*deadly.py:f ended with exit code 11"):
        make_grader("arithmetic", {}, [(f"{tmp_path / 'deadly.py'}:f", 1.0)], 5.0)


def test_close_ends_the_worker_and_may_be_repeated(make: Make) -> None:
    grader = make("process")
    pid = int(grader.grade(rows(1), ["a"])[0].reward)
    grader.close()
    assert gone(pid)
    grader.close()
    assert int(grader.grade(rows(1), ["a"])[0].reward) != pid


PARENT = """
import sys, time
from whet.records import Example
from whet.tasks.grading.graders import WorkerGrader
grader = WorkerGrader("arithmetic", {}, [(sys.argv[1] + ":process", 1.0), (sys.argv[1] + ":" + sys.argv[2], 1.0)],
                      time_limit_seconds=float(sys.argv[3]))
score = grader.grade([Example(id="e", prompt="p", answer="a")], ["fine"])[0]
print(int(score.parts["process"]), int(score.parts[sys.argv[2]]), flush=True)
grader.grade([Example(id="e", prompt="p", answer="a")], [sys.argv[4]])
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("name", "seconds", "text"),
    [("leaves", "500", "fine"), ("spin", "500", "bad"), ("regex", "1", "bad")],
    ids=["idle", "python loop", "regular expression that holds the interpreter lock"],
)
def test_the_worker_dies_when_its_parent_is_killed(tmp_path: Path, name: str, seconds: str, text: str) -> None:
    hurry = "import __main__; __main__.GRACE_SECONDS = 0.2" if name == "regex" else ""  # nobody is left to kill first
    (tmp_path / "rewards.py").write_text(REWARDS + hurry)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "rewards.py"), name, seconds, text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, left = map(int, parent.stdout.readline().split())
        time.sleep(0.3)  # the second batch is under way
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(pid))
    wait_until(lambda: name != "leaves" or gone(left))  # with what the user's code left behind
