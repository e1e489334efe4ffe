"""Binds a port and serves the page until Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from whet.errors import UserError
from whet.runs.logs import reason
from whet.ui.library import Library
from whet.ui.server.app import application
from whet.ui.server.guard import own_names

PORT = 8439  # unless it is taken; then any free one
WAITING = 128  # connections before the server answers


@dataclass(frozen=True, slots=True)
class Bound:
    """A server that is about to start."""

    server: uvicorn.Server
    socket: socket.socket
    url: str

    def run(self) -> None:
        with self.socket:
            self.server.run(sockets=[self.socket])


def bind(folder: Path, *, host: str = "127.0.0.1", port: int | None = None, token: bool = False) -> Bound:
    """Binds before anything is printed, so that the address is true; elsewhere than loopback there is a token."""
    bound = _listening(host, port)
    is_here = host == "localhost" or ipaddress.ip_address(bound.getsockname()[0]).is_loopback
    key = "" if is_here and not token else secrets.token_urlsafe(24)
    app = application(Library(folder), names={host} if is_here else own_names(host), token=key)
    # What goes wrong is told on the page; uvicorn would tell of every answer that Ctrl-C ends.
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    shown = f"[{host}]" if ":" in host else socket.gethostname() if host in ("0.0.0.0", "") else host  # noqa: S104
    path = f"{key}/" if key else ""
    return Bound(uvicorn.Server(config), bound, f"http://{shown}:{bound.getsockname()[1]}/{path}")


def _listening(host: str, port: int | None) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, PORT if port is None else port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"cannot find the address {host!r}: {reason(error)}; --host takes a name or address of this machine"
        ) from error
    family, kind, _, _, address = found
    for chosen in (address, (address[0], 0, *address[2:])):
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(chosen)
            bound.listen(WAITING)  # who reads the address connects at once
        except OSError as error:
            bound.close()
            if port is None and chosen is address:
                continue
            is_elsewhere = error.errno == errno.EADDRNOTAVAIL
            way_out = "--host takes an address of this machine" if is_elsewhere else "choose another --port"
            raise UserError(f"cannot listen on {host}, port {port or PORT}: {reason(error)}; {way_out}") from error
        return bound
    raise AssertionError("unreachable")
