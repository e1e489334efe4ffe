"""A child process that is spoken to in JSON lines, with a deadline on every word. Knows nothing about rewards."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

POLL_SECONDS = 0.25  # how soon a death is noticed when a grandchild keeps the pipe open
EXIT_SECONDS = 2.0  # how long a child may take to end by itself
CHUNK_BYTES = 2**16


class ChildHung(Exception):
    """The child said nothing before the deadline."""


class ChildDied(Exception):
    """The child ended; the message says how."""


class Child:
    """A process in its own process group, so that it can be killed with everything it started."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)
        self._unread = bytearray()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any], *, deadline: float) -> None:
        """Writes one line; `deadline` is a time of `time.monotonic`."""
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            self._wait(selectors.EVENT_WRITE, deadline)
            try:
                rest = rest[os.write(self._to.fileno(), rest[:CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ChildDied(self._how_it_ended()) from None

    def receive(self, *, deadline: float) -> dict[str, Any]:
        """Reads one line."""
        while b"\n" not in self._unread:
            self._wait(selectors.EVENT_READ, deadline)
            chunk = os.read(self._from.fileno(), CHUNK_BYTES)
            if not chunk:
                raise ChildDied(self._how_it_ended())
            self._unread += chunk
        line, _, rest = self._unread.partition(b"\n")
        self._unread = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def kill(self) -> None:
        """Ends the child and everything it started."""
        # macOS refuses a group that holds only the dead.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._to.close()
        self._from.close()

    def close(self) -> None:
        """Lets the child end by itself, and kills it if it does not."""
        self._to.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=EXIT_SECONDS)
        self.kill()

    def _wait(self, event: int, deadline: float) -> None:
        """Returns when the pipe is ready for `event`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._to if event == selectors.EVENT_WRITE else self._from, event)
            while True:
                remaining = deadline - time.monotonic()
                ended = self._process.poll() is not None
                if selector.select(0 if ended else max(0.0, min(remaining, POLL_SECONDS))):
                    return
                if ended:
                    raise ChildDied(self._how_it_ended())
                if remaining <= 0:
                    raise ChildHung

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
