"""Answers requests that no route serves, over HTTP and in place of a WebSocket's handshake: the sentence says what is served."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.api.anthropic import errors as anthropics
from connections.http.json_responses import forbidden_origin
from connections.http.refusal_counters import EndpointName, RefusalCounters

API = "/v1"
OPERATORS = "/v1/admin/"
_PLAIN = re.compile(r"(/v1)?(/[a-z_]{1,20}){0,4}")
_UNLISTED_METHODS = {"HEAD", "OPTIONS"}
_READ_METHODS = {"GET", "HEAD"}

NotFoundCallback = Callable[[Scope, str, str], None]
"""Called for a request that no route takes: its kind, the answer's code, and the path as far as it may be logged."""

CorsWrapper = Callable[[ASGIApp, Callable[[str | None], Response]], ASGIApp]
"""Lets pages of other origins read an application's answers; the second argument answers origins that are not allowed."""


class ServedPaths(NamedTuple):
    """What is served below `/v1`. `requests`: methods and paths in words, without subpaths and operators' paths."""

    requests: tuple[str, ...]
    paths: frozenset[str]
    sockets: tuple[str, ...]

    @classmethod
    def of(cls, routes: Iterable[BaseRoute]) -> ServedPaths:
        """Return the endpoints of these routes."""
        every = list(routes)
        http = [route for route in every if isinstance(route, Route)]
        paths = frozenset(route.path for route in http)
        return cls(
            requests=tuple(
                f"{method} {route.path_format}"
                for route in http
                if not (route.path.startswith(OPERATORS) or _is_below(route.path, paths))
                for method in sorted(set(route.methods or ()) - _UNLISTED_METHODS)
            ),
            paths=paths,
            sockets=tuple(route.path for route in every if isinstance(route, WebSocketRoute)),
        )

    def full_message(self, scope: Scope) -> str:
        """Return a sentence; for Anthropic's clients a short one, since programs show it."""
        if anthropics.is_anthropic_request(scope):
            theirs = sorted(path for path in self.paths if path.startswith(anthropics.PATH))
            return f"Of Anthropic's API it serves {listed(theirs)}."
        return f"It serves {', '.join(self.requests)}, and the WebSockets {listed(self.sockets)}."


class NotFoundResponses:
    """The sentences for paths without a route. Each answer is counted by its code."""

    def __init__(self, refusals: RefusalCounters) -> None:
        self._refusals = refusals

    def nothing(self, scope: Scope, why: str) -> Response:
        """Say that a path has no route."""
        return self._refusal(scope, 404, "unknown_url", why)

    def no_page(self) -> Response:
        """Say to a person that a path has no page."""
        self._refusals.count_error(EndpointName.NONE, "unknown_url")
        return PlainTextResponse("There is no page here. The chat is at / of this server.", 404)

    def socket(self, scope: Scope) -> Response:
        """Say that an HTTP request came to the path of a WebSocket."""
        if scope["method"] not in _READ_METHODS:
            return self.wrong_method(scope, "GET")
        why = f"{scope['path']} is a WebSocket: connect to it by ws:// or wss://."
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        return self._refusal(scope, 426, "upgrade_required", why, headers)

    def wrong_method(self, scope: Scope, allowed: str) -> Response:
        """Say that a path does not take this method."""
        shown = _path(scope)
        methods = ", ".join(sorted({method.strip() for method in allowed.split(",")}))
        why = f"{shown[:1].upper()}{shown[1:]} does not take {scope['method']}. It takes {methods}."
        return self._refusal(scope, 405, "method_not_allowed", why, {"Allow": methods})

    def _refusal(
        self, scope: Scope, status: int, code: str, why: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        self._refusals.count_error(EndpointName.NONE, code)
        return anthropics.refusal_of(scope, status, code, why, headers)


_SLASHED = ("/v1/", "/health/", "/healthz/", "/readyz/", "/version/")
"""Below these paths a final slash is ignored. `/metrics/` is not served: proxies block only `/metrics`."""


class PathMiddleware:
    """Stands before the routes: removes a path's final slash, and refuses WebSockets on other paths."""

    def __init__(self, app: ASGIApp, served: ServedPaths, answers: NotFoundResponses) -> None:
        self._app = app
        self._served = served
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. A redirect would lose the body of a POST, and few WebSocket clients follow one."""
        if scope["path"].endswith("/") and scope["path"].startswith(_SLASHED):
            scope = dict(scope) | {"path": scope["path"].rstrip("/")}
        if scope["type"] == "websocket" and scope["path"] not in self._served.sockets:
            why = (
                f"There is no WebSocket at {_path(scope)}. "
                f"This server has WebSockets at {listed(self._served.sockets)}."
            )
            await self._answers.nothing(scope, why)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class NotFoundApp:
    """Answers the HTTP requests that no route takes.

    `shown`: lets pages of other origins read answers below `/v1`; `on_not_found` is called for requests below the operators' path.
    """

    def __init__(
        self,
        served: ServedPaths,
        answers: NotFoundResponses,
        *,
        shown: CorsWrapper,
        on_not_found: NotFoundCallback,
    ) -> None:
        self._served = served
        self._answers = answers
        self._on_not_found = on_not_found
        self._below = shown(self._answer_below, forbidden_origin)
        self._below_anthropics = shown(self._answer_below, anthropics.foreign_page)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path in self._served.sockets:
            response = self._answers.socket(scope)
        elif path == API or path.startswith(f"{API}/"):
            answers: ASGIApp = self._answer_below
            if "origin" in Headers(scope=scope):
                answers = self._below_anthropics if anthropics.is_anthropic_request(scope) else self._below
            await answers(scope, receive, send)
            return
        elif "text/html" in Headers(scope=scope).get("accept", ""):
            response = self._answers.no_page()
        else:
            response = self._answers.nothing(scope, self._elsewhere(scope))
        await response(scope, receive, send)

    def wrong_method(self, request: Request, error: Exception) -> Response:
        """Answer a method that the path does not take."""
        allowed = (isinstance(error, HTTPException) and error.headers and error.headers.get("Allow")) or "GET"
        self._note(request.scope, "method_not_allowed")
        return self._answers.wrong_method(request.scope, allowed)

    def no_file(self, request: Request, _: Exception) -> Response:
        """Answer a request for a missing file of the page."""
        return self._answers.nothing(request.scope, "There is no such file.")

    async def _answer_below(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._note(scope, "unknown_url")
        response = self._answers.nothing(scope, self._not_served(scope))
        await response(scope, receive, send)

    def _note(self, scope: Scope, code: str) -> None:
        if scope["path"].startswith(OPERATORS):
            self._on_not_found(scope, code, _path(scope))

    def _elsewhere(self, scope: Scope) -> str:
        meant = f"{API}{scope['path']}"
        if meant in self._served.paths or meant in self._served.sockets:
            why = f"This server does not serve {scope['path']}, but {meant}."
        else:
            why = self._not_served(scope)
        is_rooted = anthropics.is_anthropic_request(scope)  # their base URL has no path
        return why if is_rooted else f"{why} The base URL of an API client ends with {API}."

    def _not_served(self, scope: Scope) -> str:
        return f"This server does not serve {_path(scope)}. {self._served.full_message(scope)}"


def listed(words: Sequence[str]) -> str:
    """Join words with commas and "and"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else "".join(words)


def _is_below(path: str, paths: Collection[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in paths)


def _path(scope: Scope) -> str:
    """Return the path if it has only plain words: another one may hold secrets or be very long."""
    path: str = scope["path"]
    return path if _PLAIN.fullmatch(path) else "this path"
