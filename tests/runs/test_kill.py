"""The contract of resumption, for the files of a run: killed at any moment and resumed equals never stopped."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs import trainer
from whet.runs.checkpoints import defect
from whet.runs.directory import RunDirectory
from whet.runs.layout import by_step

SCRIPT = Path(trainer.__file__)
ROOT = Path(__file__).resolve().parents[2]


def files_of(run: Path) -> dict[str, bytes]:
    """Everything in the run but the lock, which holds the number of the last process."""
    paths = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: a kill loses nothing that was written, so the disk does not matter."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield Path(memory)


def without_spare_checkpoints(files: dict[str, bytes], kept: dict[str, bytes]) -> dict[str, bytes]:
    """A kill between making a checkpoint and dropping the oldest leaves one too many, until the next one is made."""
    return {name: data for name, data in files.items() if name in kept or not name.startswith("checkpoints/")}


def check_after_kill(path: Path) -> int:
    """What must hold whenever the process died, seen by a reader that repairs nothing; returns the step to resume."""
    run = RunDirectory.open(path, is_writer=False)
    checkpoint = run.latest()
    assert run.warnings == []  # a kill never leaves a checkpoint that looks whole and is not
    assert [defect(made) for made in by_step(path / "checkpoints").values() if defect(made)] == []
    step = checkpoint.step if checkpoint else 0
    chain = "00" * 32
    chains = [chain := trainer.advance(chain, n) for n in range(1, 1000)]
    if checkpoint:
        assert checkpoint.state == {"chain": chains[step - 1]}
        assert (checkpoint.path / "model" / "weights.bin").read_bytes() == trainer.weights(chains[step - 1])
    lines = [row["step"] for row in run.metrics()]
    assert lines == list(range(1, len(lines) + 1))
    assert len(lines) >= step  # no checkpoint stands without the lines before it
    assert set(range(1, step + 1)) <= set(run.rollout_steps())
    for recorded in run.rollout_steps()[-5:]:
        assert run.rollouts(recorded) == list(trainer.rows(chains[recorded - 1]))
    best = run.best_model()
    if step >= trainer.BEST_EVERY:
        assert best is not None
    if best is not None:
        assert defect(best) is None
        info = json.loads((best / "best.json").read_bytes())
        assert info["chain"] == chains[info["step"] - 1]
        assert info["step"] >= step - step % trainer.BEST_EVERY
    return step


def stamp(run: Path) -> int:
    """Changes when the run goes on."""
    try:
        return (run / "metrics.jsonl").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def test_ten_kills_at_random_moments_change_no_byte(quick_path: Path) -> None:
    steps, rng = 900, random.Random(7)
    start = time.monotonic()
    trainer.train(quick_path / "whole", steps)
    pace = (time.monotonic() - start) / steps
    killed, resumed_at, kills = quick_path / "killed", [], 0
    while kills < 10:
        child = subprocess.Popen([sys.executable, str(SCRIPT), str(killed), str(steps)])
        deadline = time.monotonic() + 30
        before = stamp(killed)
        while stamp(killed) == before and time.monotonic() < deadline:
            time.sleep(0.002)  # until it has begun to write
        time.sleep(rng.uniform(0, 30 * pace))
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "the run ended before it could be killed ten times"
        kills += 1
        if (killed / "config.yaml").exists():
            resumed_at.append(check_after_kill(killed))
    assert resumed_at == sorted(resumed_at)  # nothing good is ever lost
    assert len(set(resumed_at)) > 5  # the kills did fall on different moments of the work
    subprocess.run([sys.executable, str(SCRIPT), str(killed), str(steps)], check=True)
    expected = files_of(quick_path / "whole")
    assert without_spare_checkpoints(files_of(killed), expected) == expected


@pytest.mark.parametrize(
    ("how", "stride"),
    [
        ({}, 29),
        ({"keep": 1}, 97),
        ({"delete_first": True}, 97),
        *(pytest.param(how, 1, marks=pytest.mark.slow) for how in ({}, {"keep": 1}, {"delete_first": True})),
    ],
    ids=str,
)
def test_a_kill_before_any_line_of_code_changes_no_byte(quick_path: Path, stride: int, how: dict[str, Any]) -> None:
    """Every moment, not ten: the child dies before line N of the code that writes, N = 1, 1 + stride, …

    Forked from a process without torch: a fork takes longer, the more memory a process has.
    """
    code = f"from {__name__} import Path, visit_lines; visit_lines(Path({str(quick_path)!r}), {stride}, **{how})"
    visited = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert visited.returncode == 0, visited.stderr


def visit_lines(quick_path: Path, stride: int, **how: Any) -> None:
    steps = 6  # three checkpoints, of which one or two are kept; two best models
    trainer.train(quick_path / "whole", steps, **how)
    expected = files_of(quick_path / "whole")
    line, alive, resumed_at = 1, False, []
    while not alive:
        path = quick_path / f"killed-{line}"
        alive = not in_child(lambda line=line, path=path: killed_before(line, path, steps, **how))
        if (path / "config.yaml").exists():
            resumed_at.append(check_after_kill(path))
        assert not in_child(lambda path=path: trainer.train(path, steps, **how)), f"killed before line {line}"
        assert without_spare_checkpoints(files_of(path), expected) == expected, f"killed before line {line}"
        shutil.rmtree(path)
        line += stride
    assert line > 500, line
    assert resumed_at == sorted(resumed_at)  # nothing good is ever lost: a later kill resumes at a later step
    assert {2, 4} <= set(resumed_at)


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_with_one_checkpoint_that_is_deleted_first_a_kill_may_leave_none(quick_path: Path, stride: int) -> None:
    """The danger that the docs name is there; and the run knows that it had one, so it does not begin again."""
    code = f"from {__name__} import Path, visit_deletions; visit_deletions(Path({str(quick_path)!r}), {stride})"
    visited = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert visited.returncode == 0, visited.stderr


def visit_deletions(quick_path: Path, stride: int) -> None:
    line, alive, left = 1, False, []
    while not alive:
        path = quick_path / f"killed-{line}"
        alive = not in_child(lambda line=line, path=path: killed_before(line, path, 6, keep=1, delete_first=True))
        if (path / "config.yaml").exists():
            run = RunDirectory.open(path, is_writer=False)
            left.append((run.has_saved, run.latest() is None))
            assert run.warnings == []  # never one that looks whole and is not
        shutil.rmtree(path, ignore_errors=True)
        line += stride
    assert (True, True) in left
    assert (True, False) in left


def killed_before(line: int, path: Path, steps: int, **how: Any) -> None:
    trainer.kill_before_line(line)
    trainer.train(path, steps, **how)


def in_child(work: Callable[[], None]) -> bool:
    """Runs the work in a fork and says whether it was killed; any other failure fails the test."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:  # never reached after a good end: a failure must not go on as a second pytest
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_a_line_torn_at_any_byte_is_cut_and_written_again(tmp_path: Path, name: str) -> None:
    """The one write of a line may be cut at any byte when the machine stops."""
    trainer.train(tmp_path / "run", 6)
    expected = files_of(tmp_path / "run")
    log = tmp_path / "run" / name
    whole = log.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        log.write_bytes(whole + whole[last:cut])  # a seventh line, torn
        run = RunDirectory.open(tmp_path / "run")
        assert [row["step"] for row in (run.metrics() if name == "metrics.jsonl" else run.timings())] == [*range(1, 7)]
        run.rewind(6)
        run.finish(run.results() or {"chain": json.loads(expected["final_results.json"])["chain"]})
        run.close()
        assert files_of(tmp_path / "run") == expected
