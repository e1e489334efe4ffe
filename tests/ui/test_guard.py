"""Who may read the page: this machine, under its own names, with the token where there is one; nobody may write."""

import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.ui.pages import HERE, client
from whet.errors import UserError
from whet.ui.server.serve import bind


@pytest.mark.parametrize("host", ["127.0.0.1:8439", "localhost", "LOCALHOST:1", "[::1]:8439", "10.1.2.3", "node7"])
def test_its_own_names_are_answered(tmp_path: Path, host: str) -> None:
    assert client(tmp_path, names={"node7"}).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "node8", "", "localhost:x", "a b", "[::1", "::1"],
)
def test_a_name_that_someone_else_could_point_here_is_not(tmp_path: Path, host: str) -> None:
    for path in ("/", "/api/runs", "/page/js/app.js", "/file"):
        response = client(tmp_path, names={"node7"}).get(path, headers={"host": host})
        assert response.status_code == 421
        assert "runs" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(tmp_path: Path, method: str) -> None:
    for path in ("/", "/api/runs", "/file"):
        assert client(tmp_path).request(method, path).status_code == 405
    assert client(tmp_path).head("/").status_code == 200


def test_the_token_stands_in_the_address(tmp_path: Path) -> None:
    page = client(tmp_path, token="secret")
    assert page.get("/secret/").status_code == 200
    assert page.get("/secret/api/runs").json()["entries"] == []
    assert page.get("/secret/page/js/app.js").status_code == 200
    for path in ("/", "/api/runs", "/secre/", "/secret2/", "/wrong/api/runs", "/page/js/app.js", "/secret"):
        assert page.get(path).status_code == 403, path


def test_every_response_forbids_scripts_from_elsewhere(tmp_path: Path) -> None:
    page = client(tmp_path)
    for path in ("/", "/api/runs", "/api/nothing", "/page/js/app.js", "/page/none", "/file?in=x&file=report.html"):
        headers = page.get(path).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == "'self'"
        assert rules["require-trusted-types-for"] == "'script'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_the_page_asks_no_other_server() -> None:
    """No address of another server in any of its files."""
    page = Path(__file__).parents[2] / "src" / "whet" / "ui" / "page"
    for file in (path for path in page.rglob("*") if path.is_file()):
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text.replace("file://", ""), file
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
        ):
            assert way not in text, file


def test_on_this_machine_there_is_no_token_and_elsewhere_there_is(tmp_path: Path) -> None:
    here = bind(tmp_path, port=0)
    with here.socket:
        assert here.url == f"http://127.0.0.1:{here.socket.getsockname()[1]}/"
        socket.create_connection(here.socket.getsockname(), timeout=5).close()  # before it serves: nobody is refused
    asked = bind(tmp_path, port=0, token=True)
    with asked.socket:
        token = asked.url.rstrip("/").rpartition("/")[2]
        assert len(token) >= 32
    everywhere = bind(tmp_path, host="0.0.0.0", port=0)
    with everywhere.socket:
        start, token = everywhere.url.rstrip("/").rsplit("/", 1)
        assert start == f"http://{socket.gethostname()}:{everywhere.socket.getsockname()[1]}"
        page = TestClient(everywhere.server.config.app, base_url=HERE)  # type: ignore[arg-type]
        assert page.get("/").status_code == 403
        assert page.get(f"/{token}/").status_code == 200
        assert page.get(f"/{token}/", headers={"host": socket.gethostname()}).status_code == 200


def test_the_printed_name_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a machine is often that of a loopback address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    here = bind(tmp_path, host="Node7", port=0)
    with here.socket:
        assert here.url == f"http://Node7:{here.socket.getsockname()[1]}/"
        page = TestClient(here.server.config.app, base_url=HERE)  # type: ignore[arg-type]
        assert page.get("/", headers={"host": "node7:1"}).status_code == 200
        assert page.get("/", headers={"host": "node8:1"}).status_code == 421


def test_a_taken_port_is_told_or_another_is_chosen(tmp_path: Path) -> None:
    first = bind(tmp_path, port=0)
    with first.socket:
        first.socket.listen()
        with pytest.raises(UserError, match="choose another --port"):
            bind(tmp_path, port=first.socket.getsockname()[1])
    with pytest.raises(UserError, match="--host takes"):
        bind(tmp_path, host="no.such.host.invalid", port=0)
    with pytest.raises(UserError, match="is not a directory"):
        bind(tmp_path / "none", port=0)
