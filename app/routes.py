"""The HTTP routes, the headers of every answer, and the answers to requests that no route serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.metrics import CONTENT_TYPE, Metrics, Readiness
from app.page_files import PageFiles
from connections.api.account import NO_INDEX_HEADERS, account_routes
from connections.api.admin import AdminEndpoint, ReplicaRequestHandler
from connections.api.agui.endpoint import agui_routes
from connections.api.ai_sdk.endpoint import ChatEndpoint
from connections.api.anthropic import endpoint as anthropics
from connections.api.anthropic.endpoint import messages_routes
from connections.api.audio import Audio, audio_routes
from connections.api.endpoint import OwnerDataService, PageRoutes, RequestContext
from connections.api.openai_chat import openai_routes
from connections.api.realtime.endpoint import RealtimeEndpoint
from connections.api.responses.creator import ResponseCreator
from connections.api.responses.endpoint import ResponsesWebSocketEndpoint, responses_routes
from connections.authentication.access import AccessControl
from connections.http import (
    EndpointName,
    RefusalCounters,
    forbidden_origin,
    json_response,
    refusal_response,
)
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.middleware import AllowedOrigins, CorsMiddleware, client_address_of, is_private
from connections.native.endpoint import NativeEndpoint
from connections.native.server_info import ServerInfo
from connections.protocol.base import ServerFacts
from connections.protocol.errors import Unauthenticated
from connections.voice import VoiceService
from engine.messages import current_trace, trace_of_headers
from sessions.service import Sessions

DOCS_PATH = "/docs"
DOCS_NOT_BUILT = (
    "This installation has no documentation. In a checkout `make docs` builds it; its sources are in docs/."
)
PAGE = Path(__file__).parent / "page"
DOCS = Path(__file__).parent / "docs"
SPECIFICATIONS = Path(__file__).parent / "specifications"
_SPECIFIED = {
    "/openapi.json": ("openapi.json", "application/json"),
    "/asyncapi.yaml": ("asyncapi.yaml", "application/yaml"),
    "/schemas/v1.json": ("schemas-v1.json", "application/json"),
}
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
API = "/v1"
OPERATORS = "/v1/admin/"
_PLAIN = re.compile(r"(/v1)?(/[a-z_]{1,20}){0,4}")
_UNLISTED_METHODS = {"HEAD", "OPTIONS"}
_READ_METHODS = {"GET", "HEAD"}
_SLASHED = ("/v1/", "/health/", "/healthz/", "/readyz/", "/version/")
"""Below these paths a final slash is ignored. `/metrics/` is not served: proxies block only `/metrics`."""


def application(
    *,
    api_routes: Iterable[BaseRoute],
    readiness: Readiness,
    metrics: Metrics,
    client_filter: Callable[[ASGIApp], ASGIApp],
    server: ServerFacts,
    refusals: RefusalCounters,
    access: AccessControl,
) -> ASGIApp:
    """Return the ASGI application.

    `api_routes`: the routes of the API; `client_filter` wraps all routes. `access` decides which operators may read metrics,
    and which origins may read answers.
    """
    api = list(api_routes)
    known = ServedPaths.of(api)
    not_found = NotFoundApp(known, refusals, access.origins)
    files = PageFiles(PAGE)

    async def page(request: Request) -> Response:
        return await files.page(request)

    async def shared(request: Request) -> Response:
        response = await files.page(request, "shared.html")
        response.headers.update(NO_INDEX_HEADERS)
        return response

    async def healthz(_: Request) -> Response:
        return json_response({"status": "ok"})

    async def version(_: Request) -> Response:
        return json_response(server)

    async def readyz(_: Request) -> Response:
        report = await readiness.report()
        return json_response(report, status=200 if report.ready else 503)

    async def scrape(request: Request) -> Response:
        if not is_private(client_address_of(request.scope)):
            try:
                access.identify_operator(authorization=request.headers.get("authorization"))
            except Unauthenticated as why:
                return refusal_response(why)
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    routes = [
        Route("/", page),
        Route("/s/{share_id}", shared),
        Route("/health", healthz),
        Route("/healthz", healthz),
        Route("/version", version),
        Route("/readyz", readyz),
        Route("/metrics", scrape),
        *(_specification(path, *served) for path, served in _SPECIFIED.items()),
        *api,
        Route("/static/{path:path}", files.file),
        *documentation(DOCS, not_found.refused),
    ]
    starlette = Starlette(exception_handlers={404: not_found.no_file, 405: not_found.wrong_method})
    starlette.router = Router(routes, redirect_slashes=False, default=not_found)
    return HeadersMiddleware(client_filter(PathMiddleware(starlette, known, not_found)))


def documentation(folder: Path, nothing: Callable[[Scope, str], Response]) -> list[BaseRoute]:
    """Return the routes of the documentation in a folder. `nothing` answers if no documentation was built."""

    async def redirect(_: Request) -> Response:
        return RedirectResponse(f"{DOCS_PATH.removeprefix('/')}/", headers={"Cache-Control": "no-cache"})

    async def none(request: Request) -> Response:
        return nothing(request.scope, DOCS_NOT_BUILT)

    if not (folder / "index.html").is_file():
        return [Route(DOCS_PATH, none), Route(f"{DOCS_PATH}/{{path:path}}", none)]
    return [Route(DOCS_PATH, redirect), Mount(DOCS_PATH, StaticFiles(directory=folder, html=True))]


def _specification(path: str, name: str, media_type: str) -> Route:
    async def specification(_: Request) -> Response:
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(SPECIFICATIONS / name, media_type=media_type, headers=headers)

    return Route(path, specification)


class HeadersMiddleware:
    """Sets the security headers of HTTP answers, and notes a request's id and trace for all tasks that work on it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Each has its own task, and so its own context."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        current_trace.set(trace_of_headers(scope["headers"]))
        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def api_routes(
    *,
    sessions: Sessions,
    server_info: ServerInfo,
    access: AccessControl,
    lifecycle: ConnectionLifecycle,
    limiters: Limiters,
    audio: Audio,
    spoken: VoiceService | None,
    hello_s: float,
) -> list[BaseRoute]:
    """Return the routes of the API. `hello_s`: seconds that a connection has to send `hello`."""
    endpoint = NativeEndpoint(
        sessions=sessions,
        server_info=server_info,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
        spoken=spoken,
        hello_s=hello_s,
    )
    request_context = RequestContext(
        access=access, limiters=limiters, server_info=server_info, refuses_tools=sessions.refuses_tools
    )
    realtime = RealtimeEndpoint(
        sessions=sessions,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
        spoken=spoken,
    )
    creator = ResponseCreator(sessions, request_context)
    responses = ResponsesWebSocketEndpoint(
        creator=creator,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
    )
    chats = ChatEndpoint(
        sessions=sessions,
        request_context=request_context,
        access=access,
        lifecycle=lifecycle,
        limiters=limiters,
    )
    pages = PageRoutes(access.origins, limiters.refusals)
    owners = OwnerDataService(sessions)
    sessions.replicas.answered_by(ReplicaRequestHandler(sessions, lifecycle).handle)
    admin = AdminEndpoint(sessions=sessions, owners=owners, access=access, limiters=limiters)
    return [
        WebSocketRoute("/v1/ws", endpoint.handle),
        *openai_routes(sessions, request_context, pages),
        *responses_routes(request_context, responses, pages),
        *messages_routes(sessions, request_context, pages),
        *agui_routes(sessions, request_context, pages),
        *audio_routes(audio, request_context, pages),
        *account_routes(
            sessions=sessions, owners=owners, access=access, lifecycle=lifecycle, limiters=limiters
        ),
        WebSocketRoute("/v1/realtime", realtime.handle),
        *admin.routes(),
        *chats.routes(pages),
    ]


class ServedPaths(NamedTuple):
    """What is served below `/v1`. `requests`: `METHOD path`, without operators' paths and subpaths."""

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
                if not route.path.startswith((OPERATORS, *(f"{other}/" for other in paths)))
                for method in sorted(set(route.methods or ()) - _UNLISTED_METHODS)
            ),
            paths=paths,
            sockets=tuple(route.path for route in every if isinstance(route, WebSocketRoute)),
        )

    def full_message(self, scope: Scope) -> str:
        """List the endpoints in a sentence: for Anthropic's clients, which show it, only Anthropic's own."""
        if anthropics.is_anthropic_request(scope):
            theirs = sorted(path for path in self.paths if path.startswith(anthropics.PATH))
            return f"This server supports these endpoints of Anthropic's API: {listed(theirs)}."
        return f"It serves {', '.join(self.requests)}, and the WebSockets {listed(self.sockets)}."


class PathMiddleware:
    """Runs before the routes: removes a path's final slash, and refuses WebSockets and paths that no endpoint serves."""

    def __init__(self, app: ASGIApp, served: ServedPaths, not_found: NotFoundApp) -> None:
        self._app = app
        self._served = served
        self._not_found = not_found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. A redirect would lose the body of a POST, and few WebSocket clients follow one."""
        if scope["path"].endswith("/") and scope["path"].startswith(_SLASHED):
            scope = dict(scope) | {"path": scope["path"].rstrip("/")}
        if scope["type"] == "websocket" and scope["path"] not in self._served.sockets:
            why = (
                f"No WebSocket endpoint at {_path(scope)}. "
                f"WebSocket endpoints: {listed(self._served.sockets)}."
            )
            await self._not_found.refused(scope, why)(scope, receive, send)
        elif not scope["path"].isprintable():  # the `$` in Starlette's patterns allows a final line feed
            await self._not_found(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class NotFoundApp:
    """Answers the HTTP requests that no route matches, and counts each answer by its code.

    `origins`: those whose pages may read answers below `/v1`.
    """

    def __init__(
        self,
        served: ServedPaths,
        refusals: RefusalCounters,
        origins: AllowedOrigins,
    ) -> None:
        self._served = served
        self._refusals = refusals
        self._below, self._below_anthropics = (
            CorsMiddleware(self._answer_below, origins, refusals, method="GET, POST", refusal=refusal)
            for refusal in (forbidden_origin, anthropics.foreign_page)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path in self._served.sockets:
            response = self._not_upgraded(scope)
        elif path == API or path.startswith(f"{API}/"):
            answers: ASGIApp = self._answer_below
            if "origin" in Headers(scope=scope):
                answers = self._below_anthropics if anthropics.is_anthropic_request(scope) else self._below
            await answers(scope, receive, send)
            return
        elif "text/html" in Headers(scope=scope).get("accept", ""):
            self._refusals.count_error(EndpointName.NONE, "unknown_url")
            response = PlainTextResponse("Page not found. The chat is at /.", 404)
        else:
            response = self.refused(scope, self._elsewhere(scope))
        await response(scope, receive, send)

    def refused(
        self,
        scope: Scope,
        why: str,
        *,
        status: int = 404,
        code: str = "unknown_url",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return a refusal; by default, the answer for a path without a route."""
        self._refusals.count_error(EndpointName.NONE, code)
        return anthropics.refusal_of(scope, status, code, why, headers)

    def wrong_method(self, request: Request, error: Exception) -> Response:
        """Answer a request whose method the path does not support."""
        allowed = (isinstance(error, HTTPException) and error.headers and error.headers.get("Allow")) or "GET"
        return self._not_allowed(request.scope, allowed)

    def no_file(self, request: Request, _: Exception) -> Response:
        """Answer a request for a missing file of the page."""
        return self.refused(request.scope, "File not found.")

    def _not_allowed(self, scope: Scope, allowed: str) -> Response:
        shown = _path(scope)
        methods = ", ".join(sorted({method.strip() for method in allowed.split(",")}))
        why = f"{shown[:1].upper()}{shown[1:]} does not support {scope['method']}. Allowed: {methods}."
        return self.refused(scope, why, status=405, code="method_not_allowed", headers={"Allow": methods})

    def _not_upgraded(self, scope: Scope) -> Response:
        """Return the answer to an HTTP request for the path of a WebSocket."""
        if scope["method"] not in _READ_METHODS:
            return self._not_allowed(scope, "GET")
        why = f"{scope['path']} is a WebSocket: connect to it by ws:// or wss://."
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        return self.refused(scope, why, status=426, code="upgrade_required", headers=headers)

    async def _answer_below(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.refused(scope, self._not_served(scope))(scope, receive, send)

    def _elsewhere(self, scope: Scope) -> str:
        meant = f"{API}{scope['path']}"
        if meant in self._served.paths or meant in self._served.sockets:
            why = f"This server does not serve {scope['path']}, but {meant}."
        else:
            why = self._not_served(scope)
        is_rooted = anthropics.is_anthropic_request(scope)  # the base URL of Anthropic's clients has no path
        return why if is_rooted else f"{why} The base URL of an API client ends with {API}."

    def _not_served(self, scope: Scope) -> str:
        return f"This server does not serve {_path(scope)}. {self._served.full_message(scope)}"


def listed(words: Sequence[str]) -> str:
    """Join words with commas and "and"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else "".join(words)


def _path(scope: Scope) -> str:
    """Return the path if it consists of plain words: any other may contain secrets or be very long."""
    path: str = scope["path"]
    return path if _PLAIN.fullmatch(path) else "this path"
