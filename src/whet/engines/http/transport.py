"""JSON requests to a server: retries, a key that stays secret, and what to say of an answer that is no use.

Each attempt has a deadline of its own (`Connection.timeout_seconds`), so a request takes at most `retries` + 1 times as
long, and the waits between them: up to LONGEST_BACKOFF, or up to LONGEST_WAIT where the server says Retry-After. What
may be over soon is tried again: a connection that fails or breaks, a deadline, the statuses in PASSING and from 500 on,
an answer that is not HTTP or not JSON. What the server would do again is not: any other status, an answer that is too
long or encoded, or one whose values are wrong. Redirects are not followed: a key goes to the address it was given for.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import BadStatusLine, HTTPException, RemoteDisconnected, UnknownProtocol
from typing import Any
from urllib.parse import SplitResult, urlsplit

import torch

from whet.engines.http.exchange import Answer, Flight, Request, Unfit, exchange
from whet.engines.http.untrusted import parse_object, printable, shown
from whet.errors import RunFailed, UserError
from whet.streams import stream_key, uniform

DEFAULT_PATH = "/v1"
LONGEST_BACKOFF = 30.0
LONGEST_TIMEOUT = 86400.0
LONGEST_WAIT = 600.0  # a server that wants more patience than this is not waited for
REPEATED = 16  # bytes of an answer for each of the request: a character may be an id, and come back twice
PASSING = frozenset({408, 409, 429})  # besides 5xx: what may be over soon
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
    timeout_seconds: float = 600.0  # for one attempt at one request, from connecting to the last byte of the answer
    retries: int = 5
    backoff_seconds: float = 0.5  # before the first retry; doubles with each
    concurrency: int = 16  # requests at a time

    def __post_init__(self) -> None:
        timed = 0 < self.timeout_seconds <= LONGEST_TIMEOUT and self.backoff_seconds >= 0
        if not timed or self.retries < 0 or self.concurrency < 1:
            raise UserError(
                f"a connection needs timeout_seconds > 0 and at most {LONGEST_TIMEOUT:.0f}, retries >= 0, "
                "backoff_seconds >= 0 and concurrency >= 1"
            )


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
        self._tls = ssl.create_default_context() if self._parts.scheme == "https" else None

    def post(
        self, path: str, body: Mapping[str, Any], *, stream: tuple[int, ...], flight: Flight, most_bytes: int
    ) -> dict[str, Any]:
        """The server's answer; `stream` names the random waiting times between attempts.

        A path that begins with a slash is the server's own, any other lies below the address. The answer may have
        `most_bytes`, and some for every byte of the request, because servers repeat a prompt as text or as ids.
        """
        payload = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(
            path=path if path.startswith("/") else f"{self._path}/{path}",
            headers=headers,
            payload=payload,
            seconds=self._connection.timeout_seconds,
            most_bytes=most_bytes + REPEATED * len(payload),
        )
        attempts = self._connection.retries + 1
        for attempt in range(attempts):
            try:
                return self._attempt(request, flight)
            except _Passing as problem:
                if attempt == attempts - 1:
                    times = f" {attempts} times; the last time" if attempts > 1 else ""
                    raise RunFailed(f"{self.url} failed{times}: {problem}") from problem
                wait = max(self._backoff(stream, attempt), problem.wait_seconds)
            flight.pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _backoff(self, stream: tuple[int, ...], attempt: int) -> float:
        longest = min(LONGEST_BACKOFF, self._connection.backoff_seconds * 2.0 ** min(attempt, 60))
        share = float(uniform(torch.tensor([stream_key(stream)]), torch.tensor([attempt])))
        return longest * (1 + share) / 2

    def _attempt(self, request: Request, flight: Flight) -> dict[str, Any]:
        flight.check()
        try:
            answer = exchange(self._parts, request, flight, tls=self._tls)
        except ssl.SSLCertVerificationError as error:
            raise UserError(f"{self.url} has a certificate that cannot be trusted: {error.verify_message}") from error
        except TimeoutError as error:
            raise _Passing(f"no complete answer within {request.seconds:g} s") from error
        except Unfit as error:
            raise RunFailed(f"{self.url} {self.safe(str(error))}: is that the right address?") from error
        except (OSError, HTTPException) as error:
            flight.check()  # the sockets of a cancelled flight break on purpose
            absent = isinstance(error, ConnectionRefusedError | socket.gaierror)
            hint = f"; is a server running at {self.url}?" if absent else ""
            raise _Passing(self.safe(_what_broke(error)) + hint) from error
        if not 200 <= answer.status < 300:
            raise self._refusal(answer)
        try:
            return parse_object(answer.raw)
        except json.JSONDecodeError as error:
            raise _Passing(f"the answer is not JSON: {shown(self.safe(_text(answer.raw)))}") from error
        except ValueError as error:
            raise _Passing(f"the answer {self.safe(str(error))}") from error

    def safe(self, said: str) -> str:
        """What a server said, in one printable line, without our key."""
        return printable(said.replace(self._key, "***") if self._key else said)

    def _refusal(self, answer: Answer) -> Exception:
        """What a status other than success means to the caller."""
        status, headers = answer.status, answer.headers
        message = f"status {status}: {self.safe(_server_message(answer.raw))}"
        if status not in PASSING and status < 500:
            if status < 400 and "Location" in headers:
                place = self.safe(headers["Location"])
                message = f"status {status}: it redirects to {place}; give that address if you trust it"
            elif status < 400:
                message = f"status {status}, which answers no such request: is that the right address?"
            said = f"{self.url} refused the request with {message}{HINTS.get(status, '')}"
            return Refused(said, status=status)
        wait = _retry_after(headers.get("Retry-After", ""))
        if wait > LONGEST_WAIT:
            return RunFailed(f"{self.url} wants to be left alone for {wait:.0f} s ({message}): try again later")
        return _Passing(message, wait_seconds=wait)


def parse_url(url: str) -> SplitResult:
    """The parts of a server's address."""
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        valid = valid and parts.path.isascii() and parts.path.isprintable() and " " not in parts.path
        (parts.hostname or "").encode("idna")
    except ValueError:  # of a port that is no number, half an IPv6 address, a name that no host can have
        valid = False
    if not valid:
        named = "this" if any(mark in url for mark in "@?#") else repr(url)  # there may be a password in it
        raise UserError(f"{named} is not the address of a server: write e.g. http://127.0.0.1:8000/v1")
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
    with suppress(ValueError, OverflowError):
        date = parsedate_to_datetime(text)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0


def _what_broke(error: OSError | HTTPException) -> str:
    if isinstance(error, RemoteDisconnected):
        return "the connection was closed without an answer"
    if isinstance(error, BadStatusLine | UnknownProtocol):
        return f"the answer is not HTTP: {str(error.args[0])!r}"
    return str(error) or type(error).__name__


def _server_message(raw: bytes) -> str:
    """What the server says went wrong, in any of the shapes that servers use."""
    try:
        said: Any = parse_object(raw)
    except ValueError:
        return _text(raw)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    return said if isinstance(said, str) else _text(raw)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
