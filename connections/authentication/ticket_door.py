"""`POST /v1/tickets`: a single-use ticket for a browser's page, which can't set headers on a WebSocket."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from connections.authentication.doorkeeper import Doorkeeper
from connections.authentication.tickets import TTL_S
from connections.errors import Unauthenticated
from sessions.errors import Refused


class TicketDoor:
    """Answers requests. Pages of listed origins may ask across origins (CORS); others get 403."""

    def __init__(self, doorkeeper: Doorkeeper) -> None:
        self._doorkeeper = doorkeeper

    async def answer(self, request: Request) -> Response:
        """`{ticket, expires_in_s}`, or `{error: {code, message}}` with 401, 403, 404 or 503."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        if not self._doorkeeper.origins.allow(origin, host=host):
            return _refused(403, "forbidden", "Pages of this origin may not come in.")
        response = _preflight() if request.method == "OPTIONS" else await self._ticket(request)
        if origin is not None:
            response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
        return response

    async def _ticket(self, request: Request) -> Response:
        if self._doorkeeper.asks_nobody:
            return _refused(404, "not_found", "No authentication is configured: no ticket is needed.")
        try:
            ticket = await self._doorkeeper.ticket(authorization=request.headers.get("authorization"))
        except Unauthenticated as refused:
            return _refused(401, refused.code, str(refused), {"WWW-Authenticate": "Bearer"})
        except Refused as refused:
            return _refused(503, refused.code, str(refused))
        return _json({"ticket": ticket, "expires_in_s": TTL_S}, status=200)


def _preflight() -> Response:
    headers = {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "Authorization",
        "Access-Control-Max-Age": "600",
    }
    return Response(status_code=204, headers=headers)


def _refused(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json({"error": {"code": code, "message": message}}, status=status, headers=headers)


def _json(content: object, *, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(
        content, status_code=status, headers={"Cache-Control": "no-store"} | dict(headers or {})
    )
