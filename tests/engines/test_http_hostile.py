"""Servers that mean harm, below JSON: floods, trickles, lies about lengths, redirects. Each ends in one sentence."""

import asyncio
import socket
import time

import pytest
from anyio import move_on_after

from tests.engines.hostile import KEY, ask, complaint, floods, ok, sends
from tests.engines.openai_server import Served, serving
from whet.engines.http.http_engine import ANSWER_BYTES, TOKEN_BYTES
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


ENDLESS = "no valid HTTP answer: Receive buffer too long"
FLOODS = {
    "body": (floods(HEAD + b"\r\n", b" " * 65536), "an answer of more than {most} bytes"),
    "chunks": (floods(CHUNKED, b"8000\r\n" + b" " * 0x8000 + b"\r\n"), "an answer of more than {most} bytes"),
    "error": (floods(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536), "an answer of more than {most} bytes"),
    "trailers": (floods(CHUNKED + b"0\r\n", b"X: y\r\n" * 1000), ENDLESS),
    "long headers": (floods(HEAD, b"X: " + b"y" * 60000 + b"\r\n"), ENDLESS),
    "many headers": (floods(HEAD, b"X: y\r\n"), ENDLESS),
    "one header": (floods(HEAD + b"X: ", b"y" * 65536), ENDLESS),
    "chunk extension": (floods(CHUNKED + b"1;", b"y" * 65536), ENDLESS),
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
    "gzip in transfer": (
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        "Only Transfer-Encoding: chunked is supported",
    ),
    "negative length": (HEAD + b"Content-Length: -5\r\n\r\n{}", "no valid HTTP answer: bad Content-Length"),
    "no length": (HEAD + b"Content-Length: ten\r\n\r\n{}", "no valid HTTP answer: bad Content-Length"),
    "two lengths": (ok(b"{}", b"Content-Length: 7"), "no valid HTTP answer: conflicting Content-Length headers"),
    "long length": (
        HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
        "no valid HTTP answer: bad Content-Length",
    ),
    "length above": (HEAD + b"Content-Length: 90\r\n\r\n{}", "(received 2 bytes, expected 90)"),
    "length below": (HEAD + b'Content-Length: 3\r\n\r\n{"choices": []}', """the answer is not JSON: '{"c'"""),
    "chunk above": (CHUNKED + b"ffffffffffff\r\n{}", "(incomplete chunked read)"),
    "negative chunk": (CHUNKED + b"-5\r\n{}\r\n0\r\n\r\n", "illegal chunk header"),
    "chunk of no size": (CHUNKED + b"2\r\n{}\r\nzz\r\n", "illegal chunk header"),
    "no last chunk": (CHUNKED + b"2\r\n{}\r\n", "(incomplete chunked read)"),
    "no HTTP": (b"hello " + KEY.encode() + b"\x1b[2J\r\n\r\n{}", r"illegal status line: bytearray(b'hello ***\x1b[2J"),
    "another HTTP": (b"HTTP/two 200 OK\r\n\r\n{}", "illegal status line: "),
    "no status": (b"HTTP/1.1 abc OK\r\n\r\n{}", "illegal status line: bytearray(b'HTTP/1.1 abc OK')"),
    "half a status": (b"HTTP/1.1 20", "Server disconnected without sending a response"),
    "no answer": (b"", "Server disconnected without sending a response"),
    "switching": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "no valid HTTP answer: "),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "the answer is not JSON: ''"),
    "escapes": (b"HTTP/1.1 400 No\r\n\r\n\x1b]0;t\x07\xe2\x80\xae" + KEY.encode(), r"400: \x1b]0;t\x07\u202e***"),
    "no place": (b"HTTP/1.1 302 No\r\nLocation: http://[\xff:x\r\n\r\n", "status 302: it redirects to http://["),
    "cookie": (b"HTTP/1.1 400 No\r\nSet-Cookie: a=\xff; expires=" + b" 1" * 9000 + b"\r\n\r\nno", "status 400: no"),
    "date": (b"HTTP/1.1 503 No\r\nRetry-After: Mon, 1 Jan 2024 1:1:1 +9" + b"9" * 40 + b"\r\n\r\n", "status 503"),
    "for ever": (b"HTTP/1.1 503 No\r\nRetry-After: inf\r\n\r\n", "the server sent Retry-After: inf"),
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
            asyncio.run(transport.post("completions", body, most_bytes=10))


def test_a_slow_handshake_can_be_abandoned():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = Transport(f"https://127.0.0.1:{listening.getsockname()[1]}", Connection(retries=0))

        async def abandon():
            with move_on_after(0.1) as scope:
                await transport.post("completions", {}, most_bytes=10)
            return scope.cancelled_caught

        start = time.monotonic()
        assert asyncio.run(abandon())
        assert time.monotonic() - start < 5
