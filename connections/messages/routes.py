"""The routes of Anthropic's endpoints."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from connections.api.request_context import RequestContext
from connections.http.refusal_counters import RefusalCounters
from connections.messages.endpoint import CountTokensEndpoint, MessagesEndpoint
from connections.messages.problems import foreign_page
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from sessions.service import Sessions


def messages_routes(
    sessions: Sessions, request_context: RequestContext, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""

    def with_cors(endpoint: MessagesEndpoint | CountTokensEndpoint) -> CorsMiddleware:
        return CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=foreign_page)

    return [
        Route(
            "/v1/messages",
            with_cors(MessagesEndpoint(sessions, request_context)),
            methods=["POST", "OPTIONS"],
        ),
        Route(
            "/v1/messages/count_tokens",
            with_cors(CountTokensEndpoint(sessions, request_context)),
            methods=["POST", "OPTIONS"],
        ),
    ]
