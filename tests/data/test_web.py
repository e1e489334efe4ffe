"""Files at an http address: downloaded once from a server of this test, checksummed, limited, refused in a sentence."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whet.errors import UserError
from whet.files import web
from whet.files.stored_rows import stored_rows

ROWS = [{"prompt": "a", "answer": "ä"}, {"prompt": "b", "answer": "c"}]
FILES = {
    "/rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "/rows.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "/large.jsonl": b" " * 5000,
}


class Served:
    """A server of the files above; `asked` has the path of each request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                path = self.path.partition("?")[0]
                if path == "/short.jsonl":
                    self._answer(200, FILES["/rows.jsonl"], promised=10_000)
                elif path == "/moved.jsonl":
                    self.send_response(302)
                    self.send_header("Location", "/rows.jsonl")
                    self.end_headers()
                else:
                    self._answer(200 if path in FILES else 404, FILES.get(path, b""))

            def _answer(self, code: int, data: bytes, promised: int | None = None) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(data) if promised is None else promised))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    monkeypatch.setenv("WHET_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Served()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def rows(address: str) -> list[dict[str, object]]:
    return [raw.columns for _, raw in stored_rows(address)]


@pytest.mark.parametrize("name", ["/rows.jsonl", "/rows.json.gz", "/rows.jsonl?version=2", "/moved.jsonl"])
def test_a_file_is_downloaded_once(served: Served, name: str) -> None:
    assert rows(served.address + name) == ROWS
    asked = list(served.asked)
    served.server.shutdown()  # from now on there is no network
    assert rows(served.address + name) == ROWS
    assert served.asked == asked


def test_a_damaged_copy_is_downloaded_again(served: Served, tmp_path: Path) -> None:
    rows(f"{served.address}/rows.jsonl")
    (copy,) = (tmp_path / "data").glob("*.jsonl")
    copy.write_bytes(copy.read_bytes()[:-20])
    assert rows(f"{served.address}/rows.jsonl") == ROWS
    assert len(served.asked) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("/absent.jsonl", "the server answers 404 Not Found"),
        ("/page.html", "does not name a file that can be read"),
        ("/", "does not name a file that can be read"),
        ("/short.jsonl", "bytes arrived|IncompleteRead"),
        ("/large.jsonl", "has more than 0 MiB: download it yourself"),
    ],
)
def test_what_cannot_be_downloaded_is_a_sentence_and_leaves_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    monkeypatch.setattr(web, "LARGEST", 4000)
    with pytest.raises(UserError, match=sentence):
        rows(served.address + name)
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_without_a_network_a_local_copy_is_advised(served: Served) -> None:
    served.server.shutdown()
    served.server.server_close()
    with pytest.raises(UserError, match="without a network, name a local copy"):
        rows(f"{served.address}/rows.jsonl")
