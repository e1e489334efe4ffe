"""Detached runs on this machine: attempts, endings, and no process left behind. The programs are small and real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60.0  # until a test gives up
# Each attempt adds a line; the program then ends with the next of the codes that are given.
COUNTED = """
import sys
from pathlib import Path
file = Path(sys.argv[1])
done = file.read_text() if file.exists() else ""
file.write_text(done + "x")
sys.exit(int(sys.argv[2:][min(len(done), len(sys.argv) - 3)]))
"""
# Starts a child in a session of its own, as torchrun does with its processes, and is ended by SIGKILL.
ABANDONS = """
import os, signal, subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1], "a") as file:
    file.write(f"{child.pid}\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
WAITS = """
import signal, sys, time
from pathlib import Path
def end(*_):
    Path(sys.argv[1]).write_text("saved")
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""


# Starts a rank, and says whether it was asked to end itself, as torchrun should not be.
LAUNCHES = """
import signal, subprocess, sys
from pathlib import Path
file = Path(sys.argv[1])
def asked(*_):
    Path(sys.argv[1] + "-launcher").write_text("asked")
signal.signal(signal.SIGTERM, asked)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[3], sys.argv[1]]).returncode)
"""


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Supervised:
    """A supervisor without pauses, and the file that it writes."""

    def __init__(self, place: Path, program: str, *arguments: object, restarts: int) -> None:
        self.status, self.file = place / "status.json", place / "file"
        words = [sys.executable, "-c", program, str(self.file), *map(str, arguments)]
        given = json.dumps({"words": words, "restarts": restarts, "status": str(self.status)})
        code = (
            "import sys; from pathlib import Path; from whet.launch import supervisor as s; s.PAUSE_SECONDS = 0;"
            "import json; g = json.loads(sys.argv[1]);"
            "sys.exit(s.Supervisor(g['words'], g['restarts'], Path(g['status'])).run())"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code, given], stdout=subprocess.PIPE, text=True)

    def ended(self) -> dict[str, Any]:
        self.process.communicate(timeout=SECONDS)
        found: dict[str, Any] = json.loads(self.status.read_text())
        return found


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def start(*given: Any, restarts: int) -> Supervised:
        made.append(Supervised(tmp_path, *given, restarts=restarts))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(
    ("codes", "restarts", "attempts", "ended"),
    [
        ((0,), 3, 1, "finished"),
        ((1, 1, 0), 3, 3, "finished"),
        ((1,), 2, 3, "failed with exit code 1"),
        ((2,), 3, 1, "failed with exit code 2"),  # wrong input would be refused again
        ((1,), 0, 1, "failed with exit code 1"),
    ],
)
def test_it_tries_as_often_as_it_may(
    supervised: Callable[..., Supervised], codes: tuple[int, ...], restarts: int, attempts: int, ended: str
) -> None:
    one = supervised(COUNTED, *codes, restarts=restarts)
    found = one.ended()
    assert (one.file.read_text(), found["ended"], found["attempt"]) == ("x" * attempts, ended, attempts - 1)
    assert one.process.returncode == found["code"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to the supervisor")
def test_processes_of_an_attempt_that_was_killed_do_not_outlive_it(supervised: Callable[..., Supervised]) -> None:
    one = supervised(ABANDONS, restarts=1)
    assert one.ended()["ended"] == "failed with exit code -9"
    orphans = [int(line) for line in one.file.read_text().splitlines()]
    assert len(orphans) == 2
    assert not any(Path(f"/proc/{process}").exists() for process in orphans)


def test_sigterm_lets_the_run_save_and_is_no_failure(supervised: Callable[..., Supervised]) -> None:
    one = supervised(WAITS, restarts=3)
    until(lambda: one.file.exists() and one.file.read_text() == "ready")
    one.process.send_signal(signal.SIGHUP)  # the terminal closes
    one.process.send_signal(signal.SIGTERM)
    found = one.ended()
    assert (found["ended"], found["attempt"], one.file.read_text()) == ("stopped", 0, "saved")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which processes are ranks")
def test_ranks_are_asked_and_not_torchrun(supervised: Callable[..., Supervised]) -> None:
    """torchrun would kill its ranks after half a minute, in the middle of a long step."""
    one = supervised(LAUNCHES, "torch.distributed.run", WAITS, restarts=3)
    until(lambda: one.file.exists() and one.file.read_text() == "ready")
    one.process.send_signal(signal.SIGTERM)
    assert (one.ended()["ended"], one.file.read_text()) == ("stopped", "saved")
    assert not Path(f"{one.file}-launcher").exists()


def test_children_are_those_of_one_process() -> None:
    from whet.launch.process_tree import children

    tree = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", tree], stdin=subprocess.PIPE)
    try:
        until(lambda: len(children(parent.pid)) == 1)
        assert parent.pid in children(os.getpid())
        (child,) = children(parent.pid)
        assert children(child) == []
    finally:
        parent.communicate(b"\n", timeout=SECONDS)
    assert parent.pid not in children(os.getpid())
