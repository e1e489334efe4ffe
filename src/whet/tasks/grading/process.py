"""A child process that talks JSON lines with a deadline on every message, and its environment variables.

Every reply carries the number of its request, so a duplicate, late or early reply is never taken for another one.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import IO, Any

from whet.errors import UserError, nearest

POLL_SECONDS = 0.25  # to notice a death while a grandchild keeps the pipe open
EXIT_SECONDS = 2.0  # for a child to exit by itself
CHUNK_BYTES = 2**16
LINE_BYTES = 2**26  # the longest reply
SHOWN_BYTES = 60  # of an invalid reply, in errors


class ChildHung(Exception):
    """No reply before the deadline."""


class ChildDied(Exception):
    """The child exited; the message says how."""

    def __init__(self, message: str, *, code: int | None) -> None:
        super().__init__(message)
        self.code = code  # the exit code or negative signal; None if it is alive and closed its pipe


class ChildGarbled(Exception):
    """Invalid bytes instead of a reply; the message quotes them."""


class Child:
    """A process in its own process group, so that it can be killed with its descendants.

    `printed` gets what it writes to standard error, in a thread; None leaves that to the terminal.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        printed: Callable[[bytes], None] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if printed is None else subprocess.PIPE,
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
        self._searched = 0  # leading bytes of it without a newline
        self._request = -1  # the number of the last request
        self._printing: Thread | None = None
        if printed is not None:
            assert self._process.stderr is not None
            self._printing = Thread(target=_pass_on, args=(self._process.stderr, printed), daemon=True)
            self._printing.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Mapping[str, Any], *, deadline: float) -> None:
        """Sends the next request; `deadline` is a time of `time.monotonic`."""
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
        """Reads one reply to the last request."""
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

    def end(self) -> None:
        """Kills the child and its descendants; another thread that waits for it notices its death."""
        # macOS refuses to signal a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kills the child and its descendants, and closes its pipes."""
        self.end()
        self._process.wait()
        self._to.close()
        self._from.close()
        if self._printing is not None:
            self._printing.join(EXIT_SECONDS)  # not for ever: a process of another group may hold the pipe

    def close(self) -> None:
        """Lets the child exit by itself, and kills it if it does not."""
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
        """Raises if the child sent anything without a request."""
        while not self._unread.endswith(b"\n") and len(self._unread) <= LINE_BYTES:
            try:
                chunk = os.read(self._from.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                break  # it exited, which the next write or read reports
            self._unread += chunk
        if b"\n" in self._unread:
            _answer(bytes(self._unread.partition(b"\n")[0]), self._request)
        if self._unread:
            raise ChildGarbled(f"{_shown(self._unread)}, before request {self._request} was sent")

    def _death(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return ChildDied("closed its pipe", code=None)
        names = {known.value: known.name for known in signal.Signals}  # lacks most real-time signals
        by_signal = f"was killed by {names.get(-code, f'signal {-code}')}"
        return ChildDied(by_signal if code < 0 else f"ended with exit code {code}", code=code)


def _pass_on(stream: IO[bytes], printed: Callable[[bytes], None]) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), CHUNK_BYTES):
            printed(chunk)


def _answer(line: bytes, request: int) -> dict[str, Any]:
    """The content of a reply to this request."""
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ChildGarbled(f"{_shown(line)}, which is not JSON") from None
    if not isinstance(message, dict):
        raise ChildGarbled(f"{_shown(line)}, which is not a JSON object")
    number = message.pop("request", None)
    if type(number) is not int:
        raise ChildGarbled(f"{_shown(line)}, which has no request number")
    if number != request:
        raise ChildGarbled(f"a reply to request {number} instead of request {request}")
    return message


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _shown(line: bytes | bytearray) -> str:
    rest = " …" if len(line) > SHOWN_BYTES else ""
    return f"{bytes(line[:SHOWN_BYTES]).decode('ascii', 'backslashreplace')!r}{rest}"


# Variables withheld from the worker. Matches words between underscores: HF_TOKEN, not TOKENIZERS_PARALLELISM.
SECRET = re.compile(
    r"(^|_)(API_?KEYS?|KEYS?|TOKENS?|PASS|PASSPHRASE|CREDENTIALS?|CREDS|PAT|DSN|JWT|CONNECTION_STRING)[0-9]*(_|$)"
    r"|APIKEY|ACCESSKEY|AUTHTOKEN|SECRET|PASSWORD|PASSWD|_PWD$|_PW$|WEBHOOK|^(AWS|AZURE)_|^DOCKER_AUTH_CONFIG$"
    r"|^(DATABASE|REDIS|MONGO\w*|POSTGRES\w*|MYSQL|AMQP|BROKER)_UR[IL]$|^(SSH_AUTH_SOCK|NETRC)$",
    re.IGNORECASE,
)
# Exceptions: counts, names, and the paths of certificates.
HARMLESS = re.compile(
    r"(^|_)(MAX|MIN|NUM|NEW|EOS|BOS|PAD|UNK|SEP|SORT|PRIMARY)_(TOKENS?|KEYS?)(_|$)|(^|_)TOKEN_(LIMIT|COUNT)(_|$)"
    r"|(^|_)PASS_AT_|^AWS_(DEFAULT_)?REGION$|(^|_)CA_(BUNDLE|CERTS?|FILE|PATH)$|(^|_)SSL_CERT_(FILE|DIR)$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a variable of this name usually holds a secret or gives access to one."""
    return SECRET.search(name) is not None and HARMLESS.search(name) is None


def withheld(environment: Mapping[str, str], passed: Sequence[str]) -> list[str]:
    """The variables withheld from the worker because they look like secrets."""
    return sorted(name for name in environment if is_secret(name) and name not in passed)


def worker_environment(environment: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """The variables that do not look like secrets, and those `passed` by name."""
    for name in passed:
        if name not in environment:
            raise UserError(
                f"reward.environment names {name}, which is not set{nearest(name, environment)}: export or remove it"
            )
    return {name: value for name, value in environment.items() if name in passed or not is_secret(name)}
