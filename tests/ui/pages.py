"""The application over a folder, asked as a browser asks it."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from whet.ui.library import Library
from whet.ui.server.app import application

HERE = "http://127.0.0.1"


def client(folder: Path, **settings: Any) -> TestClient:
    return TestClient(application(Library(folder), **settings), base_url=HERE, follow_redirects=False)


def ask(folder: Path, question: str, **parameters: object) -> dict[str, Any]:
    response = client(folder).get(f"/api/{question}", params={name: str(value) for name, value in parameters.items()})
    assert response.headers["content-type"] == "application/json"
    return dict(response.json())
