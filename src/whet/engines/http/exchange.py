"""One HTTP exchange on a connection of its own, which ends: at one deadline, and after so many bytes.

The timeout of a socket begins again with every operation, so a server that sends a byte a second would hold a request
for ever. Here every operation gets what is left until the deadline of the exchange: connecting, TLS, sending, headers
and body. Only the look-up of a name is the system's own affair. A request can also be abandoned by cutting its socket,
and a server such as vLLM then stops computing the answer.

huggingface-hub brings requests, httpx or httpx2, depending on its version, and none of them has such a deadline.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection, IncompleteRead
from threading import Event, Lock
from typing import Any, cast
from urllib.parse import SplitResult

from whet.engines.http.untrusted import shown

CONNECT_SECONDS = 10.0
HEAD_BYTES = 1 << 18  # of all that comes before the body; http.client also refuses more than 100 headers
CHUNK = 1 << 16
LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)


class Unfit(Exception):
    """The server's answer cannot be taken, and asking again would not change that."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is posted, and what its answer may take."""

    path: str
    headers: Mapping[str, str]
    payload: bytes
    seconds: float  # from connecting to the last byte of the answer
    most_bytes: int  # of the answer's body


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: HTTPMessage
    raw: bytes


class _Wire(io.RawIOBase):
    """What http.client needs of a socket; every operation on it ends at the deadline, and `room` bytes may come."""

    def __init__(self, held: socket.socket, deadline: float) -> None:
        super().__init__()
        self._held, self._deadline = held, deadline
        self.room, self.problem = HEAD_BYTES, f"sent more than {HEAD_BYTES} bytes of headers"

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._held.settimeout(_left(self._deadline))
        count = self._held.recv_into(buffer)
        self.room -= count
        if self.room < 0:
            raise Unfit(self.problem)
        return count

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._held.settimeout(_left(self._deadline))
            rest = rest[self._held.send(rest) :]


def exchange(url: SplitResult, request: Request, flight: Flight, *, tls: ssl.SSLContext | None) -> Answer:
    """Posts a request and reads its answer: OSError or HTTPException where that breaks, Unfit where it is no use."""
    assert url.hostname is not None
    port = url.port or (443 if tls else 80)
    deadline = time.monotonic() + request.seconds
    connection = HTTPSConnection(url.hostname, port, context=tls) if tls else HTTPConnection(url.hostname, port)
    with _connected(url.hostname, port, deadline, flight, tls) as held:
        wire = _Wire(held, deadline)
        connection.sock = cast("socket.socket", wire)
        connection.request("POST", request.path, request.payload, dict(request.headers))
        response = HTTPResponse(cast("socket.socket", wire), method="POST")
        response.begin()
        wire.room, wire.problem = request.most_bytes, _too_long(request.most_bytes)
        _check_framing(response.headers, request.most_bytes)
        return Answer(status=response.status, headers=response.headers, raw=_body(response))


@contextmanager
def _connected(
    host: str, port: int, deadline: float, flight: Flight, tls: ssl.SSLContext | None
) -> Iterator[socket.socket]:
    with _dialled(host, port, deadline, flight) as plain:
        if tls is None:
            with flight.holding(plain):
                yield plain
            return
        with tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False) as held, flight.holding(held):
            held.settimeout(_left(deadline))
            held.do_handshake()
            yield held


def _dialled(host: str, port: int, deadline: float, flight: Flight) -> socket.socket:
    """A socket that is connected to the first address of the host that answers; they share the time."""
    start = time.monotonic()
    seconds = min(CONNECT_SECONDS, deadline - start)
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    problem: OSError = OSError("its name has no address")
    for number, (family, kind, protocol, _, address) in enumerate(addresses, start=1):
        held = socket.socket(family, kind, protocol)
        try:
            with flight.holding(held):
                held.settimeout(_left(start + seconds * number / len(addresses)))
                held.connect(address)
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return held
        except TimeoutError:
            held.close()
            problem = ConnectionError(f"no connection within {seconds:.3g} s")
        except OSError as error:
            held.close()
            problem = error
        except CancelledError:
            held.close()
            raise
    raise problem


def _check_framing(headers: HTTPMessage, most_bytes: int) -> None:
    """Refuses a body that is encoded, whose length is no number, or that is announced to be too long."""
    for name, usual in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
        for said in headers.get_all(name, []):
            if said.strip().lower() != usual:
                raise Unfit(f"sent an answer with {name}: {shown(said)}, which was not asked for and is not read")
    lengths = {said.strip() for said in headers.get_all("Content-Length", [])}
    if len(lengths) > 1 or not all(LENGTH.fullmatch(length) for length in lengths):
        raise Unfit(f"sent an answer with Content-Length: {shown(', '.join(sorted(lengths)))}, which is not a length")
    if any(int(length) > most_bytes for length in lengths):
        raise Unfit(_too_long(most_bytes))


def _body(response: HTTPResponse) -> bytes:
    """The whole body; in pieces, because http.client allocates what a chunk says that it holds."""
    raw = bytearray()
    try:
        while piece := response.read(CHUNK):
            raw += piece
    except (IncompleteRead, ValueError) as error:  # ValueError: of a chunk with a negative length
        raise ConnectionError(f"the answer was cut off after {len(raw)} bytes") from error
    length = response.headers.get("Content-Length")
    if not response.chunked and length is not None and len(raw) < int(length):
        raise ConnectionError(f"the answer was cut off after {len(raw)} of {int(length)} bytes")
    return bytes(raw)


def _too_long(most_bytes: int) -> str:
    return f"sent an answer of more than {most_bytes} bytes, and an answer to what was asked is shorter"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
