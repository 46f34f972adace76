"""The HTTP routes, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.delivery.page_files import PageFiles
from app.not_found import (
    CorsWrapper,
    NotFoundApp,
    NotFoundCallback,
    NotFoundResponses,
    PathMiddleware,
    ServedPaths,
)
from app.operations.metrics import CONTENT_TYPE, Metrics
from app.operations.readiness import Readiness
from connections.account.endpoint import AccountEndpoint, account_routes
from connections.account.owner_data import OwnerDataService
from connections.admin.endpoint import AdminEndpoint
from connections.admin.operations import AdminOperations
from connections.admin.replica_requests import ReplicaRequestHandler
from connections.agui.endpoint import agui_routes
from connections.aisdk.endpoint import ChatEndpoint
from connections.aisdk.routes import aisdk_routes
from connections.aisdk.service import ChatService, ClientAuthenticator
from connections.aisdk.socket_endpoint import ChatSocketEndpoint
from connections.attachments.endpoint import AttachmentsEndpoint, attachments_routes
from connections.audio.routes import Audio, audio_routes
from connections.authentication.access import AccessControl
from connections.authentication.ticket_endpoint import TicketEndpoint, ticket_routes
from connections.embeddings.endpoint import embeddings_routes
from connections.events.endpoint import EventsEndpoint, events_routes
from connections.http.json_responses import json_response, refusal_response
from connections.http.refusal_counters import RefusalCounters
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.messages.routes import messages_routes
from connections.middleware.client_address import client_address_of, is_private
from connections.native.endpoint import NativeEndpoint
from connections.native.server_info import ServerInfo
from connections.openai.request_context import RequestContext
from connections.openai.routes import openai_routes
from connections.protocol.errors import Unauthenticated
from connections.protocol.server_info import ServerFacts
from connections.realtime.endpoint import RealtimeEndpoint, realtime_routes
from connections.responses.creator import ResponseCreator
from connections.responses.routes import responses_routes
from connections.responses.websocket_endpoint import ResponsesWebSocketEndpoint
from connections.shares.endpoint import NO_INDEX_HEADERS, SharesEndpoint, shares_routes
from connections.translations.endpoint import TranslationEndpoint, translations_routes
from connections.voice.service import VoiceService
from engine import trace
from sessions.service import Sessions

PATH = "/docs"
NOT_BUILT = (
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


def documentation(folder: Path, nothing: Callable[[Scope, str], Response]) -> list[BaseRoute]:
    """Return the routes of the site in a folder. `nothing` answers if none was built before the start."""

    async def redirect(_: Request) -> Response:
        return RedirectResponse(f"{PATH.removeprefix('/')}/", headers={"Cache-Control": "no-cache"})

    async def none(request: Request) -> Response:
        return nothing(request.scope, NOT_BUILT)

    if not (folder / "index.html").is_file():
        return [Route(PATH, none), Route(f"{PATH}/{{path:path}}", none)]
    return [Route(PATH, redirect), Mount(PATH, StaticFiles(directory=folder, html=True))]


def application(
    *,
    api_routes: Iterable[BaseRoute],
    readiness: Readiness,
    metrics: Metrics,
    client_filter: Callable[[ASGIApp], ASGIApp],
    shown: CorsWrapper,
    server: ServerFacts,
    refusals: RefusalCounters,
    on_not_found: NotFoundCallback,
    access: AccessControl,
) -> ASGIApp:
    """Return the ASGI application.

    `api_routes`: the routes of the API; `client_filter` stands before all routes; `shown` lets pages of other origins read an answer.
    `on_not_found` is called for requests below the operators' path that no route takes. `access` admits operators to the metrics.
    """
    api = list(api_routes)
    known = ServedPaths.of(api)
    answers = NotFoundResponses(refusals)
    not_found = NotFoundApp(known, answers, shown=shown, on_not_found=on_not_found)
    files = PageFiles(PAGE)

    async def page(request: Request) -> Response:
        return await files.page(request.scope)

    async def shared(request: Request) -> Response:
        response = await files.page(request.scope, "shared.html")
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
        Mount("/static", files),
        *documentation(DOCS, answers.nothing),
    ]
    starlette = Starlette(exception_handlers={404: not_found.no_file, 405: not_found.wrong_method})
    starlette.router = ExactPathRouter(routes, not_found)
    return RequestIdMiddleware(
        SecurityHeadersMiddleware(client_filter(PathMiddleware(starlette, known, answers)))
    )


def _specification(path: str, name: str, media_type: str) -> Route:
    async def specification(_: Request) -> Response:
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(SPECIFICATIONS / name, media_type=media_type, headers=headers)

    return Route(path, specification)


class ExactPathRouter(Router):
    """Finds routes of whole paths at once. Starlette looks at one route after the other: some forty for each request of the last endpoint."""

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp) -> None:
        """`default` answers what no route takes."""
        super().__init__(routes, redirect_slashes=False, default=default)
        self._whole: dict[str, list[BaseRoute]] = {}
        for route in routes:
            if isinstance(route, Route | WebSocketRoute) and "{" not in route.path:
                self._whole.setdefault(route.path, []).append(route)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. No path has a control character: the `$` of Starlette's patterns matches before a final line feed."""
        if not scope["path"].isprintable():
            await self.default(scope, receive, send)
            return
        for route in self._whole.get(scope.get("path", ""), ()):
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.handle(scope, receive, send)
                return
        await super().app(scope, receive, send)


class RequestIdMiddleware:
    """Notes a request's id and trace (`X-Request-Id`, `traceparent`) for all tasks that work for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Each has a task, and so a context, of its own."""
        if scope["type"] in ("http", "websocket"):
            trace.current.set(trace.of_headers(scope["headers"]))
        await self._app(scope, receive, send)


class SecurityHeadersMiddleware:
    """Sets the security headers of every HTTP answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

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
    translations = TranslationEndpoint(
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
    events = EventsEndpoint(sessions=sessions, access=access, lifecycle=lifecycle, limiters=limiters)
    host = ChatService(
        sessions=sessions,
        request_context=request_context,
        authenticator=ClientAuthenticator(access),
        lifecycle=lifecycle,
        limiters=limiters,
    )
    pages = (access.origins, limiters.refusals)
    shares = SharesEndpoint(sessions, limiters)
    attachments = AttachmentsEndpoint(sessions=sessions, access=access, limiters=limiters)
    owners = OwnerDataService(sessions)
    account = AccountEndpoint(acts=owners, access=access, limiters=limiters)
    sessions.replicas.answered_by(ReplicaRequestHandler(sessions, lifecycle).handle)
    admin = AdminEndpoint(
        acts=AdminOperations(sessions, access, limiters.counts),
        owners=owners,
        access=access,
        limiters=limiters,
    )
    return [
        WebSocketRoute("/v1/ws", endpoint.accept),
        *openai_routes(sessions, request_context, *pages),
        *embeddings_routes(sessions.embedding, request_context, *pages),
        *responses_routes(sessions, request_context, responses, *pages),
        *messages_routes(sessions, request_context, *pages),
        *agui_routes(sessions, request_context, *pages),
        *audio_routes(audio, request_context, *pages),
        *events_routes(events, *pages),
        *attachments_routes(attachments, *pages),
        *shares_routes(shares, *pages),
        *account_routes(account, *pages),
        *ticket_routes(TicketEndpoint(access, limiters.refusals, limiters.take_ticket), *pages),
        *realtime_routes(realtime),
        *translations_routes(translations),
        *admin.routes(),
        *aisdk_routes(ChatEndpoint(host), ChatSocketEndpoint(host), *pages),
    ]
