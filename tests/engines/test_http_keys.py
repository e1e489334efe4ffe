"""Addresses and keys: what is refused before anything is sent, and that a key reaches its server and nobody else."""

import pytest

from tests.engines.openai_server import MODEL
from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.transport import Connection
from whet.errors import RunFailed, UserError
from whet.records import Prompt, Sampling

GREEDY = Sampling(max_tokens=8, temperature=0.0)
KEY = "sk-secret-0123456789"


def prompts(native):
    return [Prompt(tokens=tuple(native.tokenizer.encode("0+")), stream=(0,))]


def ask(served, native, **connection):
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=Connection(**connection))
    return engine.generate(prompts(native), GREEDY)


def test_the_key_reaches_the_server_and_nobody_else(native, served, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    served.key = KEY
    assert ask(served, native, api_key_env="TEST_KEY") == native.generate(prompts(native), GREEDY)
    assert served.headers[0]["Authorization"] == f"Bearer {KEY}"
    served.key = "another"
    with pytest.raises(UserError, match=r"wrong key: Bearer \*\*\*.*is the right key") as refused:
        ask(served, native, api_key_env="TEST_KEY")
    assert KEY not in str(refused.value)
    served.fault = lambda handler, _: handler.send(200, b"x" * 70 + handler.headers["Authorization"].encode())
    served.key = ""
    with pytest.raises(RunFailed, match="not JSON") as failed:
        ask(served, native, api_key_env="TEST_KEY", retries=0)
    assert "sk-" not in str(failed.value)
    engine = HttpEngine(served.url, MODEL, connection=Connection(api_key_env="TEST_KEY"))
    assert KEY not in repr(engine) + repr(engine.connection)


def test_no_key_is_sent_unless_it_is_named(native, served, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ask(served, native)
    assert "Authorization" not in served.headers[0]


@pytest.mark.parametrize(
    ("url", "key", "sentence"),
    [
        ("http://example.com/v1", KEY, "would go to example.com unencrypted"),
        ("http://10.0.0.7:8000/v1", KEY, "would go to 10.0.0.7 unencrypted"),
        ("http://localhost.example.com", KEY, "unencrypted"),
        ("http://127.0.0.1:8000/v1", "", "TEST_KEY holds no API key"),
        ("http://127.0.0.1:8000/v1", "two words", "spaces or odd characters"),
        ("http://127.0.0.1:8000/v1", "ключ", "spaces or odd characters"),
    ],
)
def test_keys_that_are_refused(monkeypatch, url, key, sentence):
    monkeypatch.setenv("TEST_KEY", key)
    with pytest.raises(UserError, match=sentence) as refused:
        HttpEngine(url, MODEL, connection=Connection(api_key_env="TEST_KEY"))
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://example.com/v1", "http://localhost:8000", "http://127.8.8.8/v1", "http://[::1]:8000/v1"]
)
def test_keys_that_are_safe(monkeypatch, url):
    monkeypatch.setenv("TEST_KEY", KEY)
    assert HttpEngine(url, MODEL, connection=Connection(api_key_env="TEST_KEY")).url == (
        url if url.endswith("/v1") else f"{url}/v1"
    )


def test_a_plain_key_can_be_allowed(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    HttpEngine("http://gpu-7:8000/v1", MODEL, connection=Connection(api_key_env="TEST_KEY", allow_plain_key=True))


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://[::1", ""),
        *(f"http://{'a' * 70}.example/v1", "http://host/v 1", "http://host/é", "http://a..b/v1"),
    ],
)
def test_what_is_not_an_address(url):
    with pytest.raises(UserError, match="not the address of a server"):
        HttpEngine(url, MODEL)


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@host/v1", "http://host/v1?key=secret", "http://host/v1#secret", "http://me:secret@host:port/v1"],
)
def test_addresses_carry_no_secrets(url):
    with pytest.raises(UserError, match=r"leave it out|this is not the address of a server") as refused:
        HttpEngine(url, MODEL)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"retries": -1},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"backoff_seconds": -1},
    ],
)
def test_connections_that_cannot_work(wrong):
    with pytest.raises(UserError, match="a connection needs"):
        Connection(**wrong)


def test_proxies_of_the_environment_are_not_used(native, served, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(served, native, retries=0) == native.generate(prompts(native), GREEDY)
