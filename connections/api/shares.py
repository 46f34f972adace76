"""`GET /v1/shares/{id}`: a conversation that its owner shared, for anybody with the link, without authentication."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.authentication.caller import address_group
from connections.http.json_responses import error_code_of, forbidden_origin, json_response, refusal_response
from connections.http.refusal_counters import EndpointName, Refusal, RefusalCounters
from connections.limiters import Limiters
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from sessions.errors import Refused
from sessions.limits.rates import FrameCost, RateLimited
from sessions.limits.shares import Subject
from sessions.limits.slots import on_behalf_of
from sessions.service import Sessions

NO_INDEX_HEADERS = {"X-Robots-Tag": "noindex, nofollow"}


class SharesEndpoint:
    """Answers requests."""

    def __init__(self, sessions: Sessions, limiters: Limiters) -> None:
        self._sessions = sessions
        self._limiters = limiters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as why:
            self._limiters.refusals.count_error(EndpointName.SHARES, error_code_of(why))
            response = refusal_response(why)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return `{title, messages, has_more}`. Raises Refused."""
        group = address_group(request.scope)
        self._take(group)
        share_id: str = request.path_params["share_id"]
        with on_behalf_of(group or "/shares"):
            page = await self._sessions.shared(share_id, before=request.query_params.get("before"))
        return json_response(page, headers=NO_INDEX_HEADERS)

    def _take(self, group: str) -> None:
        """Count a read by an address. Raises RateLimited."""
        try:
            self._limiters.rates.take(FrameCost.READ, Subject(f"/shares/{group}", group))
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise


def shares_routes(
    endpoint: SharesEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CorsMiddleware(endpoint, origins, refusals, method="GET", refusal=forbidden_origin)
    return [Route("/v1/shares/{share_id}", shown, methods=["GET", "OPTIONS"])]
