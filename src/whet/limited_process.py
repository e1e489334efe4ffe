"""A child process of whet that answers in JSON lines, for work that nothing inside an interpreter can interrupt.

Its script limits the CPU time of an answer (`setitimer`, whose signal ends the process), and whatever else it needs to.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60.0  # wall-clock time for a reply
PIECE = 2**16  # bytes per read of a reply


class ProcessEnded(Exception):
    """The process ended in place of a reply; the message says how."""

    def __init__(self, status: int) -> None:
        by_signal = f"was ended by {signal.Signals(-status).name}" if status < 0 else ""
        super().__init__(by_signal or f"ended with status {status}")
        self.is_slow = status == -signal.SIGPROF  # it took more CPU time than its script allows


class LimitedProcess:
    """The process of a script, started when first needed and restarted after it died."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The reply; `ProcessEnded` if the process exceeds a limit, TimeoutError after WAIT_SECONDS."""
        with self._lock:
            process = self._started()
            try:
                line = _spoken(process, json.dumps(question).encode() + b"\n")
            except TimeoutError:
                self._end(patience=0.0)
                raise TimeoutError(f"does not answer within {WAIT_SECONDS:g} s") from None
            except BaseException:  # interrupted: a late reply must not answer the next request
                self._end()
                raise
            if line.endswith(b"\n"):
                answer: dict[str, Any] = json.loads(line)
                return answer
            raise ProcessEnded(self._end())

    def forget(self) -> None:
        """After a fork, in the child: process and lock belong to the parent."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # nothing to wait for

    def close(self) -> None:
        """Ends the process, if this one started it."""
        if self._process is not None:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:  # died since the last request
            self._end()
        if self._process is None:
            # -P: imports from neither the current directory nor the script's. A new session, so that Ctrl-C does not
            # reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(self._script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        return self._process

    def _end(self, patience: float = 0.5) -> int:
        """The exit status; a process that still runs is killed."""
        process, self._process = self._process, None
        assert process is not None
        with process:  # closes its pipes and waits
            if process.stdout is not None and process.poll() is None:
                _wait_or_kill(process, patience)
        return process.returncode


def _spoken(process: subprocess.Popen[bytes], question: bytes) -> bytes:
    """The reply line, or the part of it that was written before the process died; TimeoutError after WAIT_SECONDS."""
    assert process.stdin is not None
    assert process.stdout is not None
    deadline = time.monotonic() + WAIT_SECONDS
    there, back = process.stdin.fileno(), process.stdout.fileno()
    rest, line = memoryview(question), bytearray()
    try:
        while rest:
            _wait(there, select.POLLOUT, deadline)
            rest = rest[os.write(there, rest) :]
        while not line.endswith(b"\n"):
            _wait(back, select.POLLIN, deadline)
            piece = os.read(back, PIECE)
            if not piece:
                break
            line += piece
    except BrokenPipeError:
        return b""
    return bytes(line)


def _wait(pipe: int, what: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(pipe, what)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _wait_or_kill(process: subprocess.Popen[bytes], patience: float) -> None:
    """Waits first: a process that the system has killed takes a moment until its status is known."""
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
