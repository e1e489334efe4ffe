"""What a hostile server sends, byte by byte, and the sentence that a user gets to read."""

import pytest

from tests.engines.openai_server import MODEL
from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.transport import Connection
from whet.errors import RunFailed, UserError
from whet.records import Prompt, Sampling

KEY = "sk-secret-0123456789"
MOST_SENT = 1 << 25  # a flood ends here, so that a client that takes all of it fails instead of hanging
ONCE = {"retries": 0, "timeout_seconds": 20.0, "api_key_env": "TEST_KEY"}


def sends(*parts):
    """A fault: the bytes of an answer, and the end of the connection."""

    def fault(handler, _):
        handler._leave()
        for part in parts:
            handler.wfile.write(part)
        handler.close_connection = True
        return True

    return fault


def floods(start, again, *, pause=0.0, count=None):
    """A fault: something over and over again, until the client leaves."""

    def fault(handler, _):
        handler._leave()
        handler.close_connection = True
        handler.wfile.write(start)
        for _ in range(count or MOST_SENT // len(again)):
            if handler.server.served.over.wait(pause):
                break
            handler.wfile.write(again)
        return True

    return fault


def ok(body, *headers):
    """An answer whose headers say what it is."""
    lines = [b"HTTP/1.1 200 OK", *headers, b"Content-Length: %d" % len(body), b"", body]
    return b"\r\n".join(lines)


def ask(served, native, *, sampling, exact=True, count=1, choices=1, **connection):
    """One prompt, once, with a key."""
    engine = HttpEngine(
        served.url,
        MODEL,
        native.tokenizer if exact else None,
        connection=Connection(**{**ONCE, **connection}),
        choices=choices,
    )
    prompt = Prompt(tokens=tuple(engine.tokenizer.encode("1+")), stream=(0,))
    return engine.generate([prompt], sampling, count=count)[0]


def complaint(served, native, *, sampling=Sampling(max_tokens=8), **how):  # noqa: B008 - frozen
    """The sentence that ends the request; it names the server, is one line for a terminal, and holds no key."""
    with pytest.raises((RunFailed, UserError)) as ended:
        ask(served, native, sampling=sampling, **how)
    said = str(ended.value)
    assert said.startswith(served.url)
    assert said.isprintable()
    assert len(said) < 500
    assert KEY not in said
    return said
