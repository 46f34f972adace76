"""A request finds its route without a check of all others. A request without a route is answered in words."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.testclient import TestClient
from starlette.types import Scope

from app.routes import ExactPathRouter


class Watched(Route):
    """Counts how often it is checked."""

    looks = 0

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        self.looks += 1
        return super().matches(scope)


async def named(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.url.path} {request.path_params}")


def routes() -> tuple[Watched, Watched, Watched, TestClient]:
    below, read, written = (
        Watched("/plain/{name}", named),
        Watched("/plain", named, methods=["GET"]),
        Watched("/plain", named, methods=["POST"]),
    )
    app = ExactPathRouter([below, read, written], PlainTextResponse("nothing", 404))
    return below, read, written, TestClient(app)


def test_a_whole_path_is_found_at_once() -> None:
    below, read, written, client = routes()
    assert client.post("/plain").text == "POST /plain {}"
    assert (below.looks, read.looks, written.looks) == (0, 1, 1)
    assert client.get("/plain").text == "GET /plain {}"
    assert below.looks == 0


def test_all_else_is_as_ever() -> None:
    *_, client = routes()
    assert client.get("/plain/a").text == "GET /plain/a {'name': 'a'}"
    assert client.delete("/plain").status_code == 405
    assert client.get("/other").text == "nothing"
