"""A child process that is spoken to in JSON lines, with a deadline on every word. Knows nothing about rewards.

Every message is numbered: what the child says carries the number of the request that it belongs to. So an answer that
comes twice, late or early is never taken for another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import UserError, nearest

POLL_SECONDS = 0.25  # how soon a death is noticed when a grandchild keeps the pipe open
EXIT_SECONDS = 2.0  # how long a child may take to end by itself
CHUNK_BYTES = 2**16
LINE_BYTES = 2**26  # no honest answer is longer
SHOWN_BYTES = 60  # of what is no answer


class ChildHung(Exception):
    """The child said nothing before the deadline."""


class ChildDied(Exception):
    """The child ended; the message says how."""

    def __init__(self, message: str, *, code: int | None) -> None:
        super().__init__(message)
        self.code = code  # the exit code, the negative number of a signal; None if it lives and closed its pipe


class ChildGarbled(Exception):
    """What came through the pipe is no answer to the request; the message says what came."""


class Child:
    """A process in its own process group, so that it can be killed with everything it started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            env=None if environment is None else dict(environment),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)
        self._unread = bytearray()
        self._searched = 0  # bytes of it that hold no end of a line
        self._request = -1  # the number of the last request

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any], *, deadline: float) -> None:
        """Writes one line, the next request; `deadline` is a time of `time.monotonic`."""
        self._request += 1
        self._refuse_leftovers()
        rest = memoryview(json.dumps({**message, "request": self._request}).encode() + b"\n")
        while rest:
            self._wait(selectors.EVENT_WRITE, deadline)
            try:
                rest = rest[os.write(self._to.fileno(), rest[:CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._death() from None

    def receive(self, *, deadline: float) -> dict[str, Any]:
        """Reads one line, which must belong to the last request."""
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > LINE_BYTES:
                raise ChildGarbled(f"a line of more than {LINE_BYTES:,} bytes, {_shown(self._unread)}")
            self._wait(selectors.EVENT_READ, deadline)
            chunk = os.read(self._from.fileno(), CHUNK_BYTES)
            if not chunk:
                raise self._death()
            self._unread += chunk
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        return _answer(line, self._request)

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
                    raise self._death()
                if remaining <= 0:
                    raise ChildHung

    def _refuse_leftovers(self) -> None:
        """Raises if the child said anything that nobody asked for."""
        while not self._unread.endswith(b"\n") and len(self._unread) <= LINE_BYTES:
            try:
                chunk = os.read(self._from.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                break  # it has ended, which shows when it is written to or read from
            self._unread += chunk
        if b"\n" in self._unread:
            _answer(bytes(self._unread.partition(b"\n")[0]), self._request)
        if self._unread:
            raise ChildGarbled(f"{_shown(self._unread)}, before request {self._request} was asked")

    def _death(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return ChildDied("closed its pipe", code=None)
        names = {known.value: known.name for known in signal.Signals}  # it lacks most of the real-time ones
        by_signal = f"was killed by {names.get(-code, f'signal {-code}')}"
        return ChildDied(by_signal if code < 0 else f"ended with exit code {code}", code=code)


def _answer(line: bytes, request: int) -> dict[str, Any]:
    """What a line says, without the number of the request that it belongs to."""
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ChildGarbled(f"{_shown(line)}, which is no JSON") from None
    if not isinstance(message, dict):
        raise ChildGarbled(f"{_shown(line)}, which is no JSON object")
    number = message.pop("request", None)
    if type(number) is not int:
        raise ChildGarbled(f"{_shown(line)}, which does not say to which request it belongs")
    if number != request:
        raise ChildGarbled(f"an answer to request {number} when request {request} was asked")
    return message


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _shown(line: bytes | bytearray) -> str:
    """The beginning of what was read."""
    rest = " …" if len(line) > SHOWN_BYTES else ""
    return f"{bytes(line[:SHOWN_BYTES]).decode('ascii', 'backslashreplace')!r}{rest}"


# Words between underscores: TOKENIZERS_PARALLELISM and KEYBOARD hold no secret, HF_TOKEN and SSH_KEY_PATH may.
SECRET = re.compile(
    r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|PASS|PASSPHRASE|CREDENTIALS?|CREDS|PAT|DSN|JWT|CONNECTION_STRING)[0-9]*(_|$)"
    r"|APIKEY|ACCESSKEY|AUTHTOKEN|SECRET|PASSWORD|PASSWD|_PWD$|_PW$|WEBHOOK|^(AWS|AZURE)_|^DOCKER_AUTH_CONFIG$"
    r"|^(DATABASE|REDIS|MONGO\w*|POSTGRES\w*|MYSQL|AMQP|BROKER)_UR[IL]$|^(SSH_AUTH_SOCK|NETRC)$",
    re.IGNORECASE,
)
# Counts and names that only look like it.
HARMLESS = re.compile(
    r"(^|_)(MAX|MIN|NUM|NEW|EOS|BOS|PAD|UNK|SEP|SORT|PRIMARY)_(TOKENS?|KEYS?)(_|$)|(^|_)TOKEN_(LIMIT|COUNT)(_|$)"
    r"|(^|_)PASS_AT_|^AWS_(DEFAULT_)?REGION$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret, or opens the way to one."""
    return SECRET.search(name) is not None and HARMLESS.search(name) is None


def withheld(environment: Mapping[str, str], passed: Sequence[str]) -> list[str]:
    """The variables that the worker does not see, because their names look like those of secrets."""
    return sorted(name for name in environment if is_secret(name) and name not in passed)


def worker_environment(environment: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """The variables that are no secrets, and those that are `passed` by name."""
    for name in passed:
        if name not in environment:
            raise UserError(
                f"reward.environment names {name}, which is not set{nearest(name, environment)}: export it, or leave "
                "it out"
            )
    return {name: value for name, value in environment.items() if name in passed or not is_secret(name)}
