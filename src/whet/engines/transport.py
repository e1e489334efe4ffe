"""JSON requests to a server: time limits, retries, a key that stays secret. Knows HTTP and nothing about models.

Each request has a connection of its own, so a request can be abandoned by cutting its socket, and a server such as
vLLM then stops computing the answer. Redirects are not followed: a key goes to the address it was given for.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from threading import Event, Lock
from typing import Any
from urllib.parse import SplitResult, urlsplit

import torch

from whet.errors import RunFailed, UserError
from whet.streams import stream_key, uniform

DEFAULT_PATH = "/v1"
CONNECT_SECONDS = 10.0
LONGEST_BACKOFF = 30.0
LONGEST_WAIT = 600.0  # a server that wants more patience than this is not waited for
PASSING = frozenset({408, 409, 429})  # besides 5xx: what may be over soon
CHUNK = 1 << 16
MESSAGE_LENGTH = 300
HINTS = {
    401: "; is the right key in the environment, and its variable named?",
    403: "; is the right key in the environment, and its variable named?",
    404: "; check the address (most end in /v1) and the name of the model",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """How to talk to a server."""

    api_key_env: str = ""  # the environment variable that holds the key; none is sent unless it is named
    allow_plain_key: bool = False  # send the key over http to another machine, for all on the way to read
    timeout_seconds: float = 600.0  # for one attempt at one request
    retries: int = 5
    backoff_seconds: float = 0.5  # before the first retry; doubles with each
    concurrency: int = 16  # requests at a time

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0 or self.retries < 0 or self.backoff_seconds < 0 or self.concurrency < 1:
            raise UserError(
                "a connection needs timeout_seconds > 0, retries >= 0, backoff_seconds >= 0 and concurrency >= 1"
            )


class Flight:
    """The requests of one call, which can be abandoned together."""

    def __init__(self) -> None:
        self._lock, self._cancelled = Lock(), Event()
        self._sockets: set[socket.socket] = set()

    def cancel(self) -> None:
        """Wakes every thread that waits for an answer or for its next attempt."""
        with self._lock:
            self._cancelled.set()
            for held in self._sockets:
                with suppress(OSError):
                    socket.socket.shutdown(held, socket.SHUT_RDWR)  # below TLS: its own shutdown waits for the peer

    def check(self) -> None:
        """Raises CancelledError once the flight was cancelled."""
        if self._cancelled.is_set():
            raise CancelledError

    def pause(self, seconds: float) -> None:
        """Sleeps, unless the flight is cancelled."""
        self._cancelled.wait(seconds)
        self.check()

    @contextmanager
    def holding(self, held: socket.socket) -> Iterator[None]:
        """The socket is cut when the flight is cancelled while the block runs."""
        with self._lock:
            self.check()
            self._sockets.add(held)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(held)


class Refused(UserError):
    """The server understood the request and said no; `status` is how."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Passing(Exception):
    """What went wrong may be over at the next attempt."""

    def __init__(self, message: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class Transport:
    """Posts JSON to the paths below one address."""

    def __init__(self, url: str, connection: Connection) -> None:
        self._parts = parse_url(url)
        self._path = self._parts.path.rstrip("/") or DEFAULT_PATH
        self.url = f"{self._parts.scheme}://{self._parts.netloc}{self._path}"
        self._connection = connection
        self._key = _read_key(connection, self._parts)

    def post(self, path: str, body: Mapping[str, Any], *, stream: tuple[int, ...], flight: Flight) -> dict[str, Any]:
        """The server's answer; `stream` names the random waiting times between attempts.

        A path that begins with a slash is the server's own, any other lies below the address.
        """
        payload = json.dumps(body).encode()
        attempts = self._connection.retries + 1
        for attempt in range(attempts):
            try:
                return self._attempt(path, payload, flight)
            except _Passing as problem:
                if attempt == attempts - 1:
                    times = f" {attempts} times; the last time" if attempts > 1 else ""
                    raise RunFailed(f"{self.url} failed{times}: {problem}") from problem
                wait = max(self._backoff(stream, attempt), problem.wait_seconds)
            flight.pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _backoff(self, stream: tuple[int, ...], attempt: int) -> float:
        longest = min(LONGEST_BACKOFF, self._connection.backoff_seconds * 2.0**attempt)
        share = float(uniform(torch.tensor([stream_key(stream)]), torch.tensor([attempt])))
        return longest * (1 + share) / 2

    def _attempt(self, path: str, payload: bytes, flight: Flight) -> dict[str, Any]:
        flight.check()
        try:
            status, headers, raw = self._exchange(path, payload, flight)
        except ssl.SSLCertVerificationError as error:
            raise UserError(f"{self.url} has a certificate that cannot be trusted: {error.verify_message}") from error
        except TimeoutError as error:
            raise _Passing(f"no answer within {self._connection.timeout_seconds:g} s") from error
        except (OSError, HTTPException) as error:
            flight.check()  # the sockets of a cancelled flight break on purpose
            raise _Passing(_one_line(str(error)) or type(error).__name__) from error
        if not 200 <= status < 300:
            raise self._refusal(status, headers, raw)
        try:
            answer = json.loads(raw)
        except ValueError as error:  # also what is left of an answer that was cut off
            raise _Passing(f"the answer is not JSON: {self._secret(raw)[:80]!r}") from error
        if not isinstance(answer, dict):
            raise _Passing(f"the answer is not a JSON object: {self._secret(raw)[:80]!r}")
        return answer

    def _exchange(self, path: str, payload: bytes, flight: Flight) -> tuple[int, HTTPMessage, bytes]:
        limit = self._connection.timeout_seconds
        deadline = time.monotonic() + limit
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        assert self._parts.hostname is not None
        connection = kind(self._parts.hostname, self._parts.port, timeout=min(CONNECT_SECONDS, limit))
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.connect()
            held = connection.sock
            held.settimeout(limit)
            with flight.holding(held):
                connection.request("POST", path if path.startswith("/") else f"{self._path}/{path}", payload, headers)
                with connection.getresponse() as response:
                    raw = b""
                    while chunk := response.read1(CHUNK):
                        raw += chunk
                        held.settimeout(max(deadline - time.monotonic(), 1e-3))  # a trickle does not extend the limit
                    return response.status, response.headers, raw
        finally:
            connection.close()

    def _refusal(self, status: int, headers: HTTPMessage, raw: bytes) -> Exception:
        """What a status other than success means to the caller."""
        message = f"status {status}: {self._secret(_server_message(raw))}"
        if status not in PASSING and status < 500:
            if 300 <= status < 400:
                message = f"status {status}: it redirects to {headers.get('Location', 'nowhere')}; give that address"
            said = f"{self.url} refused the request with {message}{HINTS.get(status, '')}"
            return Refused(said, status=status)
        wait = _retry_after(headers.get("Retry-After", ""))
        if wait > LONGEST_WAIT:
            return RunFailed(f"{self.url} wants to be left alone for {wait:.0f} s ({message}): try again later")
        return _Passing(message, wait_seconds=wait)

    def _secret(self, said: bytes | str) -> str:
        """What a server said, in one line, without our key."""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return _one_line(text.replace(self._key, "***") if self._key else text)


def parse_url(url: str) -> SplitResult:
    """The parts of a server's address."""
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # of a port that is no number, or half an IPv6 address
        valid = False
    if not valid:
        raise UserError(f"{url!r} is not the address of a server: write e.g. http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError("the address of a server has a user, a query or a fragment: leave it out, keys go elsewhere")
    return parts


def _read_key(connection: Connection, parts: SplitResult) -> str:
    """The API key, refused where somebody on the way could read it."""
    name = connection.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise UserError(f"the environment variable {name} holds no API key: set it, or do not name it")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"the environment variable {name} holds no API key but text with spaces or odd characters")
    if parts.scheme == "http" and not _is_local(parts.hostname or "") and not connection.allow_plain_key:
        raise UserError(
            f"the key in {name} would go to {parts.hostname} unencrypted: use https, or a tunnel to 127.0.0.1"
        )
    return key


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def _retry_after(text: str) -> float:
    """Seconds from a Retry-After header: a number, or a date."""
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError):
        date = parsedate_to_datetime(text)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0


def _server_message(raw: bytes) -> str:
    """What the server says went wrong, in any of the shapes that servers use."""
    try:
        said = json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return said if isinstance(said, str) else json.dumps(said)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"
