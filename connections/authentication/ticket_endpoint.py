"""`POST /v1/tickets`: a single-use ticket for a browser's page, which can't set headers on a WebSocket."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.authentication.tickets import TTL_S
from connections.http.json_responses import forbidden_origin, json_response, refusal, refusal_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from connections.protocol.errors import Unauthenticated
from sessions.errors import NotFound, Refused

TicketLimiter = Callable[[Identity, Scope], None]


class TicketGiven(msgspec.Struct, frozen=True):
    """A ticket and its lifetime."""

    ticket: str
    expires_in_s: int


class TicketEndpoint:
    """Answers requests. `admit` counts one, and may raise Refused."""

    def __init__(self, access: AccessControl, refusals: RefusalCounters, admit: TicketLimiter) -> None:
        self._access = access
        self._refusals = refusals
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Answer `{ticket, expires_in_s}`, or `{error: {code, message}}` with 401, 404, 429 or 503."""
        if self._access.allows_anonymous:
            self._refusals.count_error(EndpointName.TICKETS, NotFound.code)
            return refusal(404, NotFound.code, "No authentication is configured: no ticket is needed.")

        try:
            ticket = await self._access.ticket(
                authorization=request.headers.get("authorization"),
                admit=lambda identity: self._admit(identity, request.scope),
            )
        except (Unauthenticated, Refused) as why:
            self._refusals.count_error(EndpointName.TICKETS, why.code)
            return refusal_response(why)
        return json_response(TicketGiven(ticket, TTL_S))


def ticket_routes(
    endpoint: TicketEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CorsMiddleware(endpoint, origins, refusals, method="POST", refusal=forbidden_origin)
    return [Route("/v1/tickets", shown, methods=["POST", "OPTIONS"])]
