"""The routes of the AI SDK's endpoint."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from connections.aisdk.endpoint import ChatEndpoint
from connections.aisdk.problems import foreign_origin_response
from connections.aisdk.socket_endpoint import ChatSocketEndpoint
from connections.http.refusal_counters import RefusalCounters
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins

PATH = "/v1/ai-sdk/chat"


def aisdk_routes(
    endpoint: ChatEndpoint, socket: ChatSocketEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def route(path: str, answers: ASGIApp, method: str) -> Route:
        shown = CorsMiddleware(answers, origins, refusals, method=method, refusal=foreign_origin_response)
        return Route(f"{PATH}{path}", shown, methods=[method, "OPTIONS"])

    return [
        route("", endpoint.send, "POST"),
        route("/{chat_id}/stream", endpoint.resume, "GET"),
        route("/{chat_id}/stop", endpoint.stop, "POST"),
        route("/{chat_id}/messages", endpoint.messages, "GET"),
        WebSocketRoute(PATH, socket.accept),
    ]
