"""Servers that fail: what is tried again, what is not, how long it takes, and what the user is told."""

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.engines.hostile import floods
from tests.engines.openai_server import MODEL, Served, serving
from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.transport import Connection, Transport
from whet.errors import RunFailed, UserError
from whet.records import Prompt, Sampling

GREEDY = Sampling(max_tokens=8, temperature=0.0)
QUICK = {"retries": 2, "backoff_seconds": 0.01, "timeout_seconds": 20.0, "concurrency": 4}


def prompts(native, count=1):
    return [Prompt(tokens=tuple(native.tokenizer.encode(f"{i}+")), stream=(i,)) for i in range(count)]


def ask(served, native, count=1, **connection):
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=Connection(**{**QUICK, **connection}))
    return engine.generate(prompts(native, count), GREEDY)


FAULTS = {
    "500": lambda handler, number: number < 2 and handler.error(500, "broken"),
    "503": lambda handler, number: number < 2 and handler.error(503, "loading"),
    "408": lambda handler, number: number < 2 and handler.error(408, "too slow"),
    "409": lambda handler, number: number < 2 and handler.error(409, "conflict"),
    "cut in mid-body": lambda handler, number: number < 2 and handler.send(200, b'{"choices": [', length=500),
    "cut before the answer": lambda handler, number: number < 2 and (handler.connection.shutdown(2) or True),
    "no JSON": lambda handler, number: number < 2 and handler.send(200, b"<html>busy</html>"),
    "no object": lambda handler, number: number < 2 and handler.send(200, b"[]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_tried_again(native, served, fault):
    served.fault = FAULTS[fault]
    assert ask(served, native) == native.generate(prompts(native), GREEDY)
    assert len(served.requests) == 3
    assert served.requests[0] == served.requests[1] == served.requests[2]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_pass_ends_in_one_line(native, served, fault):
    served.fault = FAULTS[fault]
    with pytest.raises(RunFailed, match=r"^http://127\S* failed 2 times; the last time: \S") as failure:
        ask(served, native, retries=1)
    assert "\n" not in str(failure.value)
    assert len(served.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_other_refusals_are_not_tried_again(native, served, status):
    served.fault = lambda handler, _: handler.error(status, "max_tokens is\n too large")
    with pytest.raises(UserError, match=f"status {status}: max_tokens is too large"):
        ask(served, native)
    assert len(served.requests) == 1


def test_a_redirect_is_not_followed(native, served):
    served.fault = lambda handler, _: handler.send(307, b"", Location="http://elsewhere.example/v1")
    with pytest.raises(UserError, match=r"redirects to http://elsewhere\.example/v1; give that address"):
        ask(served, native)


def test_the_name_of_the_model_is_checked_by_the_server(native, served):
    engine = HttpEngine(served.url, "other", native.tokenizer, connection=Connection(**QUICK))
    with pytest.raises(UserError, match=r"model `other` does not exist.*check the address"):
        engine.generate(prompts(native), GREEDY)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured(native, served, form):
    def busy(handler, number):
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)  # whole seconds: 1 to 2 ahead
        return number == 0 and handler.error(429, "busy", Retry_After="1" if form == "seconds" else date)

    served.fault = busy
    start = time.monotonic()
    assert ask(served, native) == native.generate(prompts(native), GREEDY)
    assert 0.9 < time.monotonic() - start < 3.5


def test_a_server_that_asks_for_hours_is_not_waited_for(native, served):
    served.fault = lambda handler, _: handler.error(429, "quota", Retry_After="7200")
    with pytest.raises(RunFailed, match=r"status 429: quota \(the server sent Retry-After: 7200\), and 600 s is"):
        ask(served, native)


def test_a_hanging_server_is_given_up_on(native, served):
    served.fault = lambda handler, number: number == 0 and handler.hang()
    start = time.monotonic()
    assert ask(served, native, timeout_seconds=0.5) == native.generate(prompts(native), GREEDY)
    assert 0.5 <= time.monotonic() - start < 3
    assert served.abandoned.wait(2)
    served.fault = lambda handler, _: handler.hang()
    with pytest.raises(RunFailed, match=r"failed: no complete answer within 0\.3 s"):
        ask(served, native, timeout_seconds=0.3, retries=0)


def test_a_trickle_does_not_extend_the_limit(native, served):
    def trickle(handler, _):
        handler.send(200, b"{", length=1000)
        while not served.over.wait(0.1):
            handler.wfile.write(b" ")
        return True

    served.fault = trickle
    start = time.monotonic()
    with pytest.raises(RunFailed, match=r"no complete answer within 0\.6 s"):
        ask(served, native, timeout_seconds=0.6, retries=0)
    assert time.monotonic() - start < 2


def test_nobody_listening():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        engine = HttpEngine(url, MODEL, connection=Connection(**QUICK))
        with pytest.raises(
            RunFailed,
            match=r"/v1 failed 3 times; the last time: .*connection attempts failed; is a server running at "
            + url
            + r"/v1\?",
        ):
            engine.generate([Prompt(tokens=(49,), stream=(0,))], GREEDY)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ('{"choices": []}', "0 choices, and 1 were asked for"),
        ('{"choices": [{}, {}]}', "2 choices, and 1 were asked for"),
        ('{"choices": [{}]}', r"choices\[0\].finish_reason = null"),
        ('{"choices": [{"text": "a", "finish_reason": "abort"}]}', r"choices\[0\].finish_reason = 'abort'"),
        ('{"choices": {"text": "a"}}', "without a list of choices, only with .choices."),
        ("{}", "without a list of choices, only with nothing"),
        ('{"choices": [{"text": "a", "finish_reason": "stop"}]}', "does not return the ids"),
        (
            '{"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1, "x"]}]}',
            r"token_ids\[1\] = 'x'",
        ),
    ],
)
def test_answers_of_the_wrong_shape_are_not_believed(native, served, reply, sentence):
    served.fault = lambda handler, _: handler.send(200, reply.encode())
    with pytest.raises((RunFailed, UserError), match=sentence):
        ask(served, native)
    assert len(served.requests) == 1


def test_tokens_and_logprobs_must_be_as_many(native, served):
    choice = '"finish_reason": "stop", "token_ids": [1, 2], "logprobs": {"tokens": ["a"], "token_logprobs": [-1.5]}'
    served.fault = lambda handler, _: handler.send(200, f'{{"choices": [{{{choice}}}]}}'.encode())
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=Connection(**QUICK))
    with pytest.raises(RunFailed, match="1 log-probs for 2 tokens"):
        engine.generate(prompts(native), Sampling(max_tokens=8))


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrency_is_bounded_and_order_kept(native, served, limit):
    """Later prompts are answered first, and the results still stand in the order of the prompts."""

    def slow(handler, number):
        served.over.wait(0.1 if number % 2 == 0 else 0.02)
        return False

    served.fault = slow
    assert ask(served, native, count=12, concurrency=limit) == native.generate(prompts(native, 12), GREEDY)
    assert served.busiest == limit


def test_the_first_failure_ends_the_others(native, served):
    def fault(handler, number):
        return handler.error(400, "no") if number == 3 else handler.hang()

    served.fault = fault
    start = time.monotonic()
    with pytest.raises(UserError, match="status 400"):
        ask(served, native, count=40)
    assert time.monotonic() - start < 3
    assert len(served.requests) <= 5  # what was waiting was never sent
    assert not [t for t in threading.enumerate() if t.name.startswith("whet-http")]


@pytest.mark.parametrize("waiting_for", ["answer", "retry"])
def test_ctrl_c_ends_it_at_once(native, served, waiting_for):
    served.fault = lambda handler, _: handler.hang() if waiting_for == "answer" else handler.error(503, "loading")
    everyone = threading.Event()
    fault, served.fault = (
        served.fault,
        lambda handler, number: (number == 3 and everyone.set()) or fault(handler, number),
    )

    def interrupt():
        assert everyone.wait(20)
        time.sleep(0.2)  # the answers arrive, and the waits begin
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ask(served, native, count=8, backoff_seconds=20.0)
    assert time.monotonic() - start < 8  # the first backoff is 10 s at least
    assert not [t for t in threading.enumerate() if t.name.startswith("whet-http")]
    assert len(served.requests) == 4
    if waiting_for == "answer":
        assert served.abandoned.wait(2)  # the server knows, so it can stop computing
    timer.join()


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
    extension = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *extension, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True
    )
    return files


def test_https_with_a_trusted_certificate_and_without(native, certificate, monkeypatch):
    with serving(Served(native), certificate=certificate) as served:
        with pytest.raises(UserError, match="certificate that cannot be trusted: self"):
            ask(served, native)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert ask(served, native, count=6) == native.generate(prompts(native, 6), GREEDY)
        served.fault = lambda handler, _: handler.hang()
        timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ask(served, native, count=6)
        assert time.monotonic() - start < 3
        timer.join()
        served.fault = floods(b"HTTP/1.1 200 OK\r\n", b"X", pause=0.02, count=250)
        with pytest.raises(RunFailed, match=r"failed: no complete answer within 0\.3 s"):
            ask(served, native, timeout_seconds=0.3, retries=0)


def test_waiting_times_grow_and_differ():
    transport = Transport("http://127.0.0.1:1/v1", Connection(backoff_seconds=1.0))
    waits = [[transport._backoff(attempt) for attempt in range(8)] for _ in range(50)]
    for row in waits:
        for attempt, wait in enumerate(row):
            longest = min(30.0, 2.0**attempt)
            assert longest / 2 <= wait <= longest
    assert len({row[0] for row in waits}) == 50  # clients do not come back all at once


@pytest.mark.parametrize("status", [300, 304])
def test_other_statuses_below_400_are_no_answer(native, served, status):
    served.fault = lambda handler, _: handler.send(status, b"")
    with pytest.raises(UserError, match=f"refused the request with status {status}, which answers no such request"):
        ask(served, native)
    assert len(served.requests) == 1
