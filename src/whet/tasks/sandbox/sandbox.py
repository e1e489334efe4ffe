"""Runs programs against tests, from the side that is trusted: starts the server and reads its verdicts."""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.tasks.sandbox.isolation import MECHANISMS, Limits
from whet.tasks.sandbox.values import Garbled, receive, send

SOURCE = str(Path(__file__).resolve().parents[3])
START = "import sys; sys.path.insert(0, {!r}); from whet.tasks.sandbox.zygote import main; main()"
KEPT_VARIABLES = ("LD_LIBRARY_PATH",)  # some Pythons do not start without
LEVELS = ("none", "minimum", "full")
SPARE_SECONDS = 20.0  # beyond the wall-clock limit, for a machine that is busy

PROBE = """
import os, socket, threading
def blocked(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
def network():
    def connect():
        with socket.socket() as one:
            one.settimeout(1)
            one.connect(("127.0.0.1", PORT))
    return blocked(connect)
def files():
    return blocked(lambda: open(FILE).read()) and blocked(lambda: os.listdir("/proc/1"))
def processes():
    def fork():
        if os.fork() == 0:
            os._exit(0)
    return blocked(fork)
def signals():
    return blocked(lambda: os.kill(PID, 0))
"""
GUARANTEES = ("network", "files", "processes", "signals")  # what a program cannot reach


@dataclass(frozen=True)
class Job:
    """A program and what it is tested with."""

    program: str
    tests: Sequence[str]  # statements; one passes if it raises nothing
    setup: str = ""  # runs before the tests, beside them
    names: Sequence[str] = ()  # of the program's functions and classes that the tests use
    said: str = ""  # the name of a text of the program that is asked for in the end


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a program."""

    syntax: bool = False  # it compiles
    ran: bool = False  # it was loaded without an exception
    passed: tuple[bool, ...] = ()  # of each test
    timed_out: bool = False
    error: str = ""  # of the first test that fails
    said: str = ""  # the text that was asked for


class Sandbox:
    """A server of confined processes, started on first use."""

    def __init__(self, limits: Limits, *, isolation: str = "full", without: Sequence[str] = ()) -> None:
        if isolation not in LEVELS:
            raise UserError(f"isolation is {isolation!r}, must be one of {', '.join(LEVELS)}")
        self.limits, self._level, self._without = limits, isolation, tuple(without)
        self._lock, self._measuring = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder = ""
        self._report: dict[str, Any] | None = None

    def run(self, job: Job) -> Outcome:
        """The outcome of a program, after the machine was found to isolate it as far as is demanded."""
        report = self.report()
        if not report["levels"][self._level]:
            raise UserError(refusal(report, self._level))
        return self._run(job)[0]

    def report(self) -> dict[str, Any]:
        """Which mechanisms are active and, measured by a program that tries, what programs cannot reach."""
        with self._measuring:
            if self._report is None:
                self._report = self._measured()
        return self._report

    def close(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()  # the server ends
            if self._process is not None:
                self._process.wait()
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._process = self._control = None
            self._folder = ""

    def _run(self, job: Job) -> tuple[Outcome, dict[str, Any]]:
        here, there = socket.socketpair()
        with here:
            with there:
                self._hand_over(there)
            here.settimeout(self.limits.wall_seconds + SPARE_SECONDS)
            return self._conversation(here, job)

    def _conversation(self, connection: socket.socket, job: Job) -> tuple[Outcome, dict[str, Any]]:
        verdict: dict[str, Any] = {}
        try:
            send(connection, asdict(job))
            verdict = receive(connection)
            ending = verdict if "status" in verdict else receive(connection)
        except (EOFError, ConnectionError, TimeoutError, Garbled):
            return Outcome(passed=(False,) * len(job.tests), error="no verdict on the program"), verdict
        return self._outcome(job, verdict, ending), {**ending, **verdict, "processes": ending}

    def _outcome(self, job: Job, verdict: Mapping[str, Any], ending: Mapping[str, Any]) -> Outcome:
        killed = ending["status"] in (-signal.SIGKILL, -signal.SIGXCPU)
        timed_out = bool(verdict.get("late") or ending["late"]) or (
            killed and ending["cpu"] > self.limits.cpu_seconds - 0.5
        )
        passed = tuple(one is True for one in verdict.get("passed", ()))
        if len(passed) != len(job.tests):
            return Outcome(passed=(False,) * len(job.tests), timed_out=timed_out, error="the tests did not end")
        return Outcome(
            syntax=verdict["syntax"],
            ran=verdict["ran"],
            passed=passed,
            timed_out=timed_out,
            error=verdict["error"],
            said=str(verdict.get("said", "")),
        )

    def _hand_over(self, job: socket.socket) -> None:
        for _ in range(2):
            with self._lock:
                control = self._control or self._started()
            try:
                socket.send_fds(control, [b"j"], [job.fileno()])
                return
            except OSError:  # the server was ended from outside
                self.close()
        raise RunFailed("the server of the sandbox ends at once: see `whet sandbox`")

    def _started(self) -> socket.socket:
        if not sys.platform.startswith("linux"):
            raise UserError("programs are run on Linux only: nothing here isolates them")
        self._folder = tempfile.mkdtemp(prefix="whet-sandbox-")
        here, there = socket.socketpair()
        settings = {
            "control": there.fileno(),
            "limits": asdict(self.limits),
            "folder": self._folder,
            "without": self._without,
            "source": SOURCE,
        }
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-B", "-c", START.format(SOURCE), json.dumps(settings)],
                env={"PYTHONHASHSEED": "0", **{key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ}},
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._control = here
        atexit.register(self.close)
        return here

    def _measured(self) -> dict[str, Any]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            known = f"PORT, FILE, PID = {server.getsockname()[1]}, {__file__!r}, {os.getpid()}\n"
            tests = [f"assert {name}() is True" for name in GUARANTEES]
            outcome, raw = self._run(Job(program=known + PROBE, tests=tests, names=GUARANTEES))
        if not outcome.ran:
            raise RunFailed(f"the sandbox cannot run a program on this machine: {outcome.error or 'no verdict'}")
        active, refused = ({**raw["processes"][key], **raw[key]} for key in ("active", "refused"))
        cannot = dict(zip(GUARANTEES, outcome.passed, strict=True))
        minimum = cannot["network"] and ("seccomp" in active or "namespaces" in active)
        return {
            "active": {name: active[name] for name in MECHANISMS if name in active},
            "refused": {name: refused[name] for name in MECHANISMS if name in refused},
            "cannot_reach": cannot,
            "levels": {"none": True, "minimum": minimum, "full": minimum and all(cannot.values())},
            "limits": asdict(self.limits),
        }


def refusal(report: Mapping[str, Any], level: str) -> str:
    """One sentence: what a program could reach, why, and what to do."""
    open_to = ", ".join(name for name, is_out in report["cannot_reach"].items() if not is_out) or "nothing measured"
    missing = "; ".join(f"{name}: {why}" for name, why in report["refused"].items())
    less = [name for name in LEVELS[: LEVELS.index(level)] if report["levels"][name]]
    return (
        f"this machine does not isolate programs as isolation={level} demands: a program could reach {open_to} "
        f"({missing}): run in a container or machine that allows it, or accept isolation={less[-1]}"
    )


def described(report: Mapping[str, Any]) -> str:
    """One line for people: what isolates programs here, and what they could reach."""
    active = ", ".join(report["active"]) or "none"
    reachable = [name for name, is_out in report["cannot_reach"].items() if not is_out]
    open_to = f"; programs could reach: {', '.join(reachable)}" if reachable else ""
    level = next(name for name in reversed(LEVELS) if report["levels"][name])
    return f"sandbox: isolation {level} (limits, {active}){open_to}"
