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
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.json_answers import answer, foreign_page, refusal, refused
from connections.http.refusals import Door, Refusals
from connections.wire.errors import Unauthenticated
from sessions.errors import NotFound, Refused

Admit = Callable[[Identity, Scope], None]


class TicketGiven(msgspec.Struct, frozen=True):
    """A ticket and its lifetime."""

    ticket: str
    expires_in_s: int


class TicketDoor:
    """Answers requests. `admit` counts one, and may raise Refused."""

    def __init__(self, access: AccessControl, refusals: Refusals, admit: Admit) -> None:
        self._access = access
        self._refusals = refusals
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Answer `{ticket, expires_in_s}`, or `{error: {code, message}}` with 401, 404, 429 or 503."""
        if self._access.asks_nobody:
            self._refusals.tell(Door.TICKETS, NotFound.code)
            return refusal(404, NotFound.code, "No authentication is configured: no ticket is needed.")

        try:
            ticket = await self._access.ticket(
                authorization=request.headers.get("authorization"),
                admit=lambda identity: self._admit(identity, request.scope),
            )
        except (Unauthenticated, Refused) as why:
            self._refusals.tell(Door.TICKETS, why.code)
            return refused(why)
        return answer(TicketGiven(ticket, TTL_S))


def ticket_routes(door: TicketDoor, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CrossOrigin(door, origins, refusals, method="POST", refusal=foreign_page)
    return [Route("/v1/tickets", shown, methods=["POST", "OPTIONS"])]
