"""`GET /v1/export` and `DELETE /v1/me`: all that is kept of whoever asks, as lines of JSON; and its end.

Who asks shows a key or a JWT in the header. An application's key names its user by `client_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.account.acts import Erased, OwnersActs
from connections.authentication.access import AccessControl
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.exchange import Exchange
from connections.http.json_answers import answer, counted_as, foreign_page, refused
from connections.http.queries import name_of
from connections.http.refusals import Door, Refusal, Refusals
from connections.limits.caller import Caller, caller_of
from connections.limits.limiters import Limiters
from connections.limits.quotas import RateLimited
from connections.wire.errors import BadParams, Unauthenticated
from connections.wire.scopes import KeyScope
from connections.wire.table import Counts
from sessions.errors import Refused
from sessions.records import Owner
from sessions.store.redis.asker import asking_for

WEIGHT = 10
"""Reads that one of these counts as."""
Act = Callable[[Exchange, Owner], Awaitable[None]]


class AccountDoor:
    """Answers requests."""

    def __init__(self, *, acts: OwnersActs, access: AccessControl, limiters: Limiters) -> None:
        self._acts = acts
        self._access = access
        self._limiters = limiters

    async def export(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with all conversations and messages, one a line."""
        await self._serve(Exchange(scope, receive, send), self._export, KeyScope.READ)

    async def erase(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Erases all of them, and answers how many there were."""
        await self._serve(Exchange(scope, receive, send), self._erase, KeyScope.MANAGE)

    async def _serve(self, exchange: Exchange, act: Act, scope: KeyScope) -> None:
        try:
            caller = await self._caller(exchange)
            caller.grant.check(scope)
            with self._place(caller), asking_for(caller.group or caller.client.client_id):
                await act(exchange, caller.owner)
        except (BadParams, Unauthenticated, Refused) as why:
            self._limiters.refusals.tell(Door.ACCOUNT, counted_as(why))
            if exchange.begun:
                exchange.cut_off()
            else:
                await exchange.answer(refused(why))
        except (ClientDisconnect, TimeoutError):
            exchange.cut_off()

    async def _caller(self, exchange: Exchange) -> Caller:
        """Who asks. Raises Unauthenticated, BadParams, Refused."""
        request = exchange.request
        identity = await self._access.identify(authorization=request.headers.get("authorization"))
        client_id = request.query_params.get("client_id")
        if client_id is None and not identity.is_person:
            raise BadParams("client_id: is missing.")
        return caller_of(
            identity, "" if client_id is None else name_of("client_id", client_id), request.scope
        )

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[None]:
        """What this costs is counted, and few do it at a time. Raises RateLimited, Overloaded."""
        try:
            for _ in range(WEIGHT):
                self._limiters.rates.take(Counts.READ, caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise
        with self._acts.place():
            yield

    async def _export(self, exchange: Exchange, owner: Owner) -> None:
        await self._acts.export(exchange, owner)

    async def _erase(self, exchange: Exchange, owner: Owner) -> None:
        await exchange.answer(answer(Erased(await self._acts.erase(owner))))


def account_routes(door: AccountDoor, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """The routes below `/v1`."""
    export = CrossOrigin(door.export, origins, refusals, method="GET", refusal=foreign_page)
    erase = CrossOrigin(door.erase, origins, refusals, method="DELETE", refusal=foreign_page)
    return [
        Route("/v1/export", export, methods=["GET", "OPTIONS"]),
        Route("/v1/me", erase, methods=["DELETE", "OPTIONS"]),
    ]
