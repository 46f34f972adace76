"""`GET /v1/shares/{id}`: a conversation that its owner shared, for anybody with the link, without authentication."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.json_answers import answer, counted_as, foreign_page, refused
from connections.http.refusals import Door, Refusal, Refusals
from connections.limits.groups import address_group
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.wire.table import Counts
from sessions.errors import Refused
from sessions.service import Sessions
from sessions.shares import Subject
from sessions.store.redis.asker import asking_for

NOT_FOUND_BY_SEARCH = {"X-Robots-Tag": "noindex, nofollow"}


class SharesDoor:
    """Answers requests."""

    def __init__(self, sessions: Sessions, limiters: Limiters) -> None:
        self._sessions = sessions
        self._limiters = limiters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except Refused as why:
            self._limiters.refusals.tell(Door.SHARES, counted_as(why))
            response = refused(why)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return `{title, messages, has_more}`. Raises Refused."""
        group = address_group(request.scope)
        self._take(group)
        share_id: str = request.path_params["share_id"]
        with asking_for(group or "/shares"):
            page = await self._sessions.shared(share_id, before=request.query_params.get("before"))
        return answer(page, headers=NOT_FOUND_BY_SEARCH)

    def _take(self, group: str) -> None:
        """Count a read by an address. Raises RateLimited."""
        try:
            self._limiters.rates.take(Counts.READ, Subject(f"/shares/{group}", group))
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise


def shares_routes(door: SharesDoor, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CrossOrigin(door, origins, refusals, method="GET", refusal=foreign_page)
    return [Route("/v1/shares/{share_id}", shown, methods=["GET", "OPTIONS"])]
