"""`GET /v1/export` and `DELETE /v1/me`: the caller's stored data as lines of JSON, and its erasure.

The caller sends a key or a JWT in the header; a ticket, which is in a URL, is not accepted. An application's key names its user
by `client_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.account.acts import Cut, Erased, OwnersActs
from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.exchange import Exchange
from connections.http.json_answers import answer, counted_as, foreign_page, refused
from connections.http.refusals import Door, Refusal, Refusals
from connections.limits.caller import Caller, named_caller
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.wire.errors import BadParams, Unauthenticated
from connections.wire.scopes import KeyScope
from connections.wire.table import Counts
from sessions.conversation.guarding import guarded
from sessions.errors import Refused
from sessions.store.redis.asker import asking_for

WEIGHT = 10
"""Reads that such a request counts as."""
Act = Callable[[Exchange, Identity, Caller], Awaitable[None]]


class AccountDoor:
    """Answers requests."""

    def __init__(self, *, acts: OwnersActs, access: AccessControl, limiters: Limiters) -> None:
        self._acts = acts
        self._access = access
        self._limiters = limiters

    async def export(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with all conversations and messages, one a line."""
        await self._answer(Exchange(scope, receive, send), self._export, KeyScope.READ)

    async def erase(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Erase all of them, and answer with their number."""
        await self._answer(Exchange(scope, receive, send), self._erase, KeyScope.MANAGE)

    async def _answer(self, exchange: Exchange, act: Act, scope: KeyScope) -> None:
        failed = await guarded(self._serve(exchange, act, scope))
        if failed is not None:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange, act: Act, scope: KeyScope) -> None:
        """Raises Refused."""
        try:
            identity = await self._identify(exchange)
            identity.grant.check(scope)
            caller = named_caller(identity, exchange.request)
            self._count(caller)
            with asking_for(caller.group or caller.client.client_id):
                await act(exchange, identity, caller)
        except (BadParams, Unauthenticated) as why:
            await self._refuse(exchange, why)
        except (ClientDisconnect, TimeoutError):
            exchange.cut_off()

    async def _refuse(self, exchange: Exchange, why: BadParams | Unauthenticated | Refused) -> None:
        self._limiters.refusals.tell(Door.ACCOUNT, counted_as(why))
        if exchange.begun:
            exchange.cut_off()
        else:
            await exchange.answer(refused(why))

    async def _identify(self, exchange: Exchange) -> Identity:
        """Return the caller by a key or JWT. Raises Unauthenticated, Refused."""
        authorization = exchange.request.headers.get("authorization")
        return await self._access.identify_lasting(authorization=authorization)

    def _count(self, caller: Caller) -> None:
        """Count the cost of the request. Raises RateLimited."""
        try:
            self._limiters.rates.take(Counts.READ, caller.subject, WEIGHT)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def _export(self, exchange: Exchange, identity: Identity, caller: Caller) -> None:
        with self._access.inside(identity, Cut(exchange)):
            await self._acts.export(exchange, caller.owner, caller.subject)

    async def _erase(self, exchange: Exchange, _: Identity, caller: Caller) -> None:
        await exchange.answer(answer(Erased(await self._acts.erase(caller.owner, caller.subject))))


def account_routes(door: AccountDoor, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    export = CrossOrigin(door.export, origins, refusals, method="GET", refusal=foreign_page)
    erase = CrossOrigin(door.erase, origins, refusals, method="DELETE", refusal=foreign_page)
    return [
        Route("/v1/export", export, methods=["GET", "OPTIONS"]),
        Route("/v1/me", erase, methods=["DELETE", "OPTIONS"]),
    ]
