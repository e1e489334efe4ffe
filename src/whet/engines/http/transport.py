"""JSON requests to a server: deadlines, retries with backoff, secrecy of the API key, and error messages.

Each attempt has one deadline (`Connection.timeout_seconds`) from connecting to the last byte: httpx's own timeouts
restart with every operation, so a server could send a byte a second. A request takes at most `retries` + 1 deadlines
and the waits between them, up to LONGEST_BACKOFF each, or LONGEST_WAIT if the server sends Retry-After.

Retried: connection failures, deadlines, statuses in PASSING and 5xx, replies that are not HTTP or JSON. Not retried:
any other status, replies that are too long, encoded or invalid. Redirects are not followed, so that the key only goes
to its own address. Proxies of the environment are not used.
"""

import asyncio
import ipaddress
import json
import os
import random
import ssl
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

try:
    import httpx2 as httpx  # the client of huggingface-hub 2; 1.x brings its predecessor, which has the same interface
except ModuleNotFoundError:
    import httpx  # type: ignore[no-redef]

from whet.engines.http.untrusted import parse_object, printable, shown
from whet.errors import RunFailed, UserError

DEFAULT_PATH = "/v1"
CONNECT_SECONDS = 10.0
LONGEST_BACKOFF = 30.0
LONGEST_TIMEOUT = 86400.0
LONGEST_WAIT = 600.0  # a longer Retry-After is an error
REPEATED = 16  # extra reply bytes per request byte: servers may echo a prompt as text and as ids
PASSING = frozenset({408, 409, 429})  # retried besides 5xx
HINTS = {
    401: "; is the right key in the environment, and its variable named?",
    403: "; is the right key in the environment, and its variable named?",
    404: "; check the address (most end in /v1) and the name of the model",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Connection settings of a server."""

    api_key_env: str = ""  # environment variable with the API key; without one no key is sent
    allow_plain_key: bool = False  # allow sending the key unencrypted (http) to another machine
    timeout_seconds: float = 600.0  # of one attempt, from connecting to the last byte of the reply
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


class RequestRefused(UserError):
    """A status that retrying would not change, such as 404."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Passing(Exception):
    """A failure that a retry may fix."""

    def __init__(self, message: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class Transport:
    """Posts JSON to the paths below one address."""

    def __init__(self, url: str, connection: Connection) -> None:
        parts = parse_url(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self.url = self._origin + (parts.path.rstrip("/") or DEFAULT_PATH)
        self._connection = connection
        self._key = _read_key(connection, parts)
        self._tls = ssl.create_default_context()

    async def post(self, path: str, body: Mapping[str, Any], *, most_bytes: int) -> dict[str, Any]:
        """The server's reply, of at most `most_bytes` plus REPEATED per byte of the request.

        A path that starts with a slash is relative to the host, any other to the address.
        """
        url = self._origin + path if path.startswith("/") else f"{self.url}/{path}"
        payload = json.dumps(body).encode()
        attempts = self._connection.retries + 1
        for attempt in range(attempts):
            try:
                return await self._attempt(url, payload, most_bytes + REPEATED * len(payload))
            except _Passing as problem:
                if attempt == attempts - 1:
                    times = f" {attempts} times; the last time" if attempts > 1 else ""
                    raise RunFailed(f"{self.url} failed{times}: {problem}") from problem
                wait = max(self._backoff(attempt), problem.wait_seconds)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _backoff(self, attempt: int) -> float:
        longest = min(LONGEST_BACKOFF, self._connection.backoff_seconds * 2.0 ** min(attempt, 60))
        return longest * random.uniform(0.5, 1)  # noqa: S311 - jitter, so that clients do not retry in step

    async def _attempt(self, url: str, payload: bytes, most_bytes: int) -> dict[str, Any]:
        seconds = self._connection.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                response, raw = await self._exchange(url, payload, most_bytes)
        except httpx.ConnectTimeout as error:
            raise _Passing(f"no connection within {CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise _Passing(f"no complete answer within {seconds:g} s") from error
        except httpx.TransportError as error:
            raise self._broken(error) from error
        if not response.is_success:
            raise self._refusal(response, raw)
        try:
            return parse_object(raw)
        except json.JSONDecodeError as error:
            raise _Passing(f"the answer is not JSON: {shown(self.safe(_text(raw)))}") from error
        except ValueError as error:
            raise _Passing(f"the answer {self.safe(str(error))}") from error

    async def _exchange(self, url: str, payload: bytes, most_bytes: int) -> tuple[httpx.Response, bytes]:
        """Posts on a new connection; closing it, also by cancellation, makes the server stop generating."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS).as_dict()
        request = httpx.Request("POST", url, content=payload, headers=headers, extensions={"timeout": timeout})
        # A bare transport, because httpx's client handles cookies and redirects.
        transport = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        async with transport, aclosing(await transport.handle_async_request(request)) as response:
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.strip().lower() != "identity":
                kind = shown(self.safe(encoding))
                raise RunFailed(f"{self.url} sent an answer with Content-Encoding: {kind}, which was not asked for")
            raw = bytearray()
            async for piece in response.aiter_raw():
                raw += piece
                if len(raw) > most_bytes:
                    raise RunFailed(
                        f"{self.url} sent an answer of more than {most_bytes} bytes, and an answer to what was asked "
                        "is shorter: is that the right address?"
                    )
            return response, bytes(raw)

    def safe(self, text: str) -> str:
        """Text of a server as one printable line, with the API key masked."""
        return printable(text.replace(self._key, "***") if self._key else text)

    def _broken(self, error: httpx.TransportError) -> Exception:
        """The exception for a failed exchange: _Passing, unless the certificate is invalid."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return UserError(f"{self.url} has a certificate that cannot be trusted: {cause.verify_message}")
            cause = cause.__cause__ or cause.__context__
        hint = f"; is a server running at {self.url}?" if isinstance(error, httpx.ConnectError) else ""
        what = "no valid HTTP answer: " if isinstance(error, httpx.ProtocolError) else ""
        return _Passing(what + self.safe(str(error) or type(error).__name__) + hint)

    def _refusal(self, response: httpx.Response, raw: bytes) -> Exception:
        """The exception for a status other than success."""
        status, headers = response.status_code, response.headers
        message = ": ".join(filter(None, (f"status {status}", self.safe(_server_message(raw)))))
        if status not in PASSING and status < 500:
            if status < 400 and "Location" in headers:
                place = self.safe(headers["Location"])
                message = f"status {status}: it redirects to {place}; give that address if you trust it"
            elif status < 400:
                message = f"status {status}, which answers no such request: is that the right address?"
            refusal = f"{self.url} refused the request with {message}{HINTS.get(status, '')}"
            return RequestRefused(refusal, status=status)
        asked = headers.get("Retry-After", "")
        if asked:
            message += f" (the server sent Retry-After: {self.safe(asked)})"
        wait = _retry_after(asked)
        if wait > LONGEST_WAIT:
            return RunFailed(
                f"{self.url} failed: {message}, and {LONGEST_WAIT:g} s is the longest wait: try again later"
            )
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
    """The API key; refuses to send it unencrypted to another machine."""
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
    with suppress(ValueError):  # of a name
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _retry_after(text: str) -> float:
    """Seconds from a Retry-After header: a number, or a date."""
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError, OverflowError):
        date = parsedate_to_datetime(text)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0


def _server_message(raw: bytes) -> str:
    """The error message in a reply, in any of the formats that servers use."""
    try:
        found: Any = parse_object(raw)
    except ValueError:
        return _text(raw)
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else _text(raw)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
