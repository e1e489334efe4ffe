"""Who may read the page: the names of the server, the token in its addresses, and the headers of every response."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# No script but our files, no other server, no form, no frame around the page; text never becomes HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# A report in a frame: no script at all, whoever wrote it, and no address of its own.
FRAMED = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware: answers GET and HEAD alone, under a known name and, if there is one, below the token."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = (), token: str = "") -> None:
        """`names` of this server besides localhost and IP addresses."""
        self.app, self._token = app, token
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, _with_headers(send))
            return
        if self._token:
            scope = {**scope, "root_path": f"/{self._token}"}
        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page can only be read", 405, {"allow": "GET, HEAD"})
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            # A page elsewhere may give its own name the address of this machine, to read what is served here.
            return PlainTextResponse("this name is not one of this server: use its IP address or localhost", 421)
        if self._token and not self._has_token(scope["path"]):
            return PlainTextResponse("the address lacks the token that whet ui printed", 403)
        return None

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header is an IP address, which no one else can name, or a name of this server."""
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d{1,5})?", host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def _has_token(self, path: str) -> bool:
        return hmac.compare_digest(path.split("/")[1].encode(), self._token.encode()) if path.count("/") > 1 else False


def own_names(host: str) -> set[str]:
    """Names under which this machine may be reached when it is bound to more than loopback."""
    return {host, socket.gethostname(), socket.getfqdn()}


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            named = {name for name, _ in message["headers"]}
            more = HEADERS | {"content-security-policy": POLICY.format(ancestors="'none'")}
            message["headers"] = [
                *message["headers"],
                *((name.encode(), value.encode()) for name, value in more.items() if name.encode() not in named),
            ]
        await send(message)

    return sending
