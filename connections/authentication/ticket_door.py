"""`POST /v1/tickets`: a single-use ticket for a browser's page, which can't set headers on a WebSocket."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from connections.authentication.doorkeeper import Doorkeeper
from connections.authentication.tickets import TTL_S
from connections.errors import Unauthenticated
from connections.json_answers import answer, foreign_page, refusal, refused
from sessions.errors import Refused


class TicketGiven(msgspec.Struct, frozen=True):
    """A ticket, and for how long it is one."""

    ticket: str
    expires_in_s: int


class TicketDoor:
    """Answers requests. Pages of listed origins may ask across origins (CORS); others get 403."""

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        self._doorkeeper = doorkeeper

    async def answer(self, request: Request) -> Response:
        """`{ticket, expires_in_s}`, or `{error: {code, message}}` with 401, 403, 404 or 503."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        if not self._doorkeeper.origins.allow(origin, host=host):
            return foreign_page()
        response = _preflight() if request.method == "OPTIONS" else await self._ticket(request)
        if origin is not None:
            response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
        return response

    async def _ticket(self, request: Request) -> Response:
        if self._doorkeeper.asks_nobody:
            return refusal(404, "not_found", "No authentication is configured: no ticket is needed.")
        try:
            ticket = await self._doorkeeper.ticket(authorization=request.headers.get("authorization"))
        except (Unauthenticated, Refused) as why:
            return refused(why)
        return answer(TicketGiven(ticket, TTL_S))


def _preflight() -> Response:
    headers = {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "Authorization",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=204, headers=headers)
