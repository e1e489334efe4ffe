"""Servers that mean harm, below JSON: floods, trickles, lies about lengths, redirects. Each ends in one sentence."""

import socket
import threading
import time
from concurrent.futures import CancelledError

import pytest

from tests.engines.hostile import KEY, ask, complaint, floods, ok, sends
from tests.engines.openai_server import Served, serving
from whet.engines.http.engine import ANSWER_BYTES, TOKEN_BYTES
from whet.engines.http.exchange import HEAD_BYTES, Flight
from whet.engines.http.transport import REPEATED, Connection, Transport
from whet.errors import RunFailed
from whet.records import Sampling

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
PAUSE, SLOW = 0.02, 250  # a trickle lasts 5 s, or until the client leaves


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


TRICKLES = {
    "nothing": floods(b"", b"\r\n", pause=5.0, count=1),
    "status line": floods(b"HTTP/1.1 2", b"0", pause=PAUSE, count=SLOW),
    "continue": floods(b"", CONTINUE, pause=PAUSE, count=SLOW),
    "header": floods(HEAD + b"X-Slow: ", b"x", pause=PAUSE, count=SLOW),
    "body with a length": floods(HEAD + b"Content-Length: 1000\r\n\r\n", b" ", pause=PAUSE, count=SLOW),
    "body without a length": floods(HEAD + b"\r\n", b" ", pause=PAUSE, count=SLOW),
    "chunks": floods(CHUNKED, b"1\r\n \r\n", pause=PAUSE, count=SLOW),
    "one chunk": floods(CHUNKED + b"400\r\n", b" ", pause=PAUSE, count=SLOW),
    "trailer": floods(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: y\r\n", pause=PAUSE, count=SLOW),
    "error": floods(b"HTTP/1.1 400 No\r\n\r\n", b"x", pause=PAUSE, count=SLOW),
}


@pytest.mark.parametrize("trickle", TRICKLES)
def test_a_deadline_is_of_the_whole_exchange(native, served, trickle):
    served.fault = TRICKLES[trickle]
    assert "failed: no complete answer within 0.2 s" in complaint(served, native, timeout_seconds=0.2)


def test_each_attempt_has_the_deadline(native, served):
    served.fault = TRICKLES["header"]
    said = complaint(served, native, timeout_seconds=0.1, retries=2, backoff_seconds=0.0)
    assert "failed 3 times; the last time: no complete answer within 0.1 s" in said
    assert len(served.requests) == 3


FLOODS = {
    "body": (floods(HEAD + b"\r\n", b" " * 65536), "an answer of more than {most} bytes"),
    "chunks": (floods(CHUNKED, b"8000\r\n" + b" " * 0x8000 + b"\r\n"), "an answer of more than {most} bytes"),
    "trailers": (floods(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), "an answer of more than {most} bytes"),
    "error": (floods(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536), "an answer of more than {most} bytes"),
    "announced": (sends(HEAD + b"Content-Length: 999999999999\r\n\r\n"), "an answer of more than {most} bytes"),
    "continue": (floods(b"", CONTINUE * 1000), f"more than {HEAD_BYTES} bytes of headers"),
    "long headers": (floods(HEAD, b"X: " + b"y" * 60000 + b"\r\n"), f"more than {HEAD_BYTES} bytes of headers"),
    "many headers": (floods(HEAD, b"X: y\r\n"), "got more than 100 headers"),
    "one header": (floods(HEAD + b"X: ", b"y" * 65536), "got more than 65536 bytes when reading header line"),
    "chunk extension": (floods(CHUNKED + b"1;", b"y" * 65536), "got more than 65536 bytes when reading chunk size"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_an_answer_has_an_end(native, served, flood):
    served.fault, sentence = FLOODS[flood]
    said = complaint(served, native)
    assert sentence.split("{most}")[0] in said
    if "{most}" in sentence:
        least = ANSWER_BYTES + 8 * TOKEN_BYTES
        most = int(said.split("more than ")[1].split(" bytes")[0])
        assert least < most < least + REPEATED * 1000


def test_a_flood_is_not_asked_for_again(native, served):
    served.fault = FLOODS["body"][0]
    complaint(served, native, retries=5)
    assert len(served.requests) == 1


FRAMES = {
    "gzip": (ok(b"\x1f\x8b\x08", b"Content-Encoding: gzip"), "sent an answer with Content-Encoding: 'gzip'"),
    "a key": (ok(b"", b"Content-Encoding: " + KEY.encode()), "Content-Encoding: '***', which was not asked for"),
    "deflate twice": (ok(b"{}", b"Content-Encoding: deflate, deflate"), "Content-Encoding: 'deflate, deflate'"),
    "gzip in transfer": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding: 'gzip, chunked'"),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\n{}", "Content-Length: '-5', which is not a length"),
    "no length": (HEAD + b"Content-Length: ten\r\n\r\n{}", "Content-Length: 'ten', which is not a length"),
    "two lengths": (ok(b"{}", b"Content-Length: 7"), "Content-Length: '2, 7', which is not a length"),
    "long length": (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}", "which is not a length"),
    "length above": (HEAD + b"Content-Length: 90\r\n\r\n{}", "the answer was cut off after 2 of 90 bytes"),
    "length below": (HEAD + b'Content-Length: 3\r\n\r\n{"choices": []}', """the answer is not JSON: '{"c'"""),
    "chunk above": (CHUNKED + b"ffffffffffff\r\n{}", "the answer was cut off after 0 bytes"),
    "negative chunk": (CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n", "the answer was cut off after 0 bytes"),
    "chunk of no size": (CHUNKED + b"2\r\n{}\r\nzz\r\n", "the answer was cut off after"),
    "no last chunk": (CHUNKED + b"2\r\n{}\r\n", "the answer was cut off after"),
    "no HTTP": (b"hello " + KEY.encode() + b"\x1b[2J\r\n{}", r"the answer is not HTTP: 'hello ***\x1b[2J"),
    "another HTTP": (b"HTTP/2.0 200 OK\r\n\r\n{}", "the answer is not HTTP: 'HTTP/2.0'"),
    "no status": (b"HTTP/1.1 abc OK\r\n\r\n{}", "the answer is not HTTP: 'HTTP/1.1 abc OK"),
    "half a status": (b"HTTP/1.1 20", "the answer is not HTTP: 'HTTP/1.1 20'"),
    "no answer": (b"", "the connection was closed without an answer"),
    "switching": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "refused the request with status 101"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "the answer is not JSON: ''"),
    "escapes": (b"HTTP/1.1 400 No\r\n\r\n\x1b]0;t\x07\xe2\x80\xae" + KEY.encode(), r"400: \x1b]0;t\x07\u202e***"),
    "date": (b"HTTP/1.1 503 No\r\nRetry-After: Mon, 1 Jan 2024 1:1:1 +9" + b"9" * 40 + b"\r\n\r\n", "status 503"),
    "for ever": (b"HTTP/1.1 503 No\r\nRetry-After: inf\r\n\r\n", "wants to be left alone for inf s"),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_what_is_not_an_answer(native, served, frame):
    content, sentence = FRAMES[frame]
    served.fault = sends(content)
    assert sentence in complaint(served, native)


def test_a_chunked_answer_is_read(native, served):
    body = b'{"choices": [{"text": "a", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
    pieces = [b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in (body[:1], body[1:40], body[40:])]
    served.fault = sends(CONTINUE, CHUNKED, *pieces, b"0\r\nX: y\r\n\r\n")

    assert ask(served, native, sampling=Sampling(max_tokens=1), exact=False)[0].text == "a"
    assert served.headers[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_key_does_not_follow_a_redirect(native, served, status):
    with serving(Served(native)) as other:
        served.fault = lambda handler, _: handler.send(status, b"", Location=f"{other.url}?was={KEY}")
        said = complaint(served, native)
    assert f"status {status}: it redirects to {other.url}?was=***; give that address if you trust it" in said
    assert other.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_does_not_read(scheme):
    """Sending ends at the deadline too, and so does the handshake of TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        transport = Transport(url, Connection(timeout_seconds=0.2, retries=0))
        body = {"prompt": "a" * (1 << 24)}
        with pytest.raises(RunFailed, match=r"failed: no complete answer within 0\.2 s"):
            transport.post("completions", body, stream=(0,), flight=Flight(), most_bytes=10)


def test_a_slow_handshake_can_be_abandoned():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = Transport(f"https://127.0.0.1:{listening.getsockname()[1]}", Connection(retries=0))
        flight = Flight()
        timer = threading.Timer(0.1, flight.cancel)
        timer.start()
        start = time.monotonic()

        with pytest.raises(CancelledError):
            transport.post("completions", {}, stream=(0,), flight=flight, most_bytes=10)
        assert time.monotonic() - start < 5
        timer.join()
