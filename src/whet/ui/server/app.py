"""The application: the page, answers to its questions, and reports in frames."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from whet.errors import RunFailed, UserError, escaped
from whet.runs.logs import json_bytes
from whet.ui.answers.files import found_file
from whet.ui.answers.query import Query
from whet.ui.answers.questions import QUESTIONS
from whet.ui.answers.sources import Sources
from whet.ui.library import Library
from whet.ui.server.guard import FRAMED, Guard

PAGE = Path(__file__).parents[1] / "page"
LONGEST = 500  # characters of an error


def application(library: Library, *, names: Iterable[str] = (), token: str = "") -> Starlette:
    sources = Sources(library)

    # Not async: starlette calls these in threads, so a slow answer does not keep the others waiting.
    def answer(request: Request) -> Response:
        question = QUESTIONS.get(request.path_params["question"])
        if question is None:
            raise HTTPException(404)
        try:
            return _json(question(sources, Query(request.query_params)))
        except (UserError, RunFailed) as error:
            return _json({"error": str(error)}, 422)
        except Exception as error:  # noqa: BLE001 - contents are not trusted: what they break is told on the page
            return _json({"error": f"this cannot be read ({type(error).__name__}: {error})"[:LONGEST]}, 500)

    def file(request: Request) -> Response:
        try:
            path = found_file(sources, Query(request.query_params))
        except (UserError, RunFailed) as error:
            raise HTTPException(404, escaped(str(error))) from error
        return FileResponse(path, headers={"content-security-policy": FRAMED})

    def start(_: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    return Starlette(
        routes=[
            Route("/", start),
            Route("/api/{question}", answer),
            Route("/file", file),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        middleware=[Middleware(Guard, names=names, token=token)],
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")
