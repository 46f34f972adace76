"""`GET /v1/conversations/{id}/events`: the door for readers."""

from __future__ import annotations

import asyncio
import random
import secrets
from functools import partial

from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.events.asking import Asked, asked
from connections.events.reader import Reader
from connections.events.telling import begin
from connections.events.transport import EventTransport
from connections.gate.cross_origin import CrossOrigin
from connections.gate.origin import Origins
from connections.http.exchange import Exchange
from connections.http.json_answers import counted_as, foreign_page, refused
from connections.http.refusals import Door, Refusals
from connections.limits.caller import caller_of
from connections.limits.limiters import Limiters
from connections.line.connection import Connection
from connections.line.outbox import Outbox
from connections.line.presence import Presence
from connections.line.socket_door import OUTBOX_BYTES
from connections.wire.errors import BadParams, Close, CloseCode, Unauthenticated
from connections.wire.features import understood
from connections.wire.scopes import KeyScope
from sessions.conversation.guarding import guarded
from sessions.errors import Refused
from sessions.service import Sessions

PATH = "/v1/conversations/{conversation_id}/events"
RETRY_MS = (1000, 3000)
"""Spreads the reconnections of readers when the server stops."""


class EventsDoor:
    """Answers requests with streams that last as long as their readers stay: connections like sockets in all else."""

    def __init__(
        self, *, sessions: Sessions, access: AccessControl, presence: Presence, limiters: Limiters
    ) -> None:
        self._sessions = sessions
        self._access = access
        self._presence = presence
        self._limiters = limiters
        self._tally = limiters.tally(Door.EVENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        if exchange.request.method == "HEAD":
            await exchange.answer(Response(status_code=405, headers={"Allow": "GET, OPTIONS"}))
            return
        failed = await guarded(self._serve(exchange))
        if failed is not None and not exchange.begun:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        try:
            ask = asked(exchange.request)
            identity = await self._identify(exchange, ask)
            identity.grant.check(KeyScope.READ)
            await self._show(exchange, ask, identity)
        except (BadParams, Unauthenticated, Close) as why:
            if isinstance(why, Close) and why.code is CloseCode.DRAIN:
                await _come_back(exchange)
            else:
                await self._refuse(exchange, why)

    async def _refuse(self, exchange: Exchange, why: Refused | BadParams | Unauthenticated | Close) -> None:
        self._tally.told(counted_as(why))
        await exchange.answer(refused(why))

    async def _identify(self, exchange: Exchange, ask: Asked) -> Identity:
        """Return the identity of the reader. A lasting token must not be in a URL. Raises Unauthenticated, Refused."""
        if ask.ticket is not None and not (ask.ticket.startswith(TICKET) or self._access.asks_nobody):
            raise Unauthenticated("A URL takes tickets only.", why="no ticket in the URL")
        authorization = exchange.request.headers.get("authorization")
        return await self._access.identify(authorization=authorization, token=ask.ticket)

    async def _show(self, exchange: Exchange, ask: Asked, identity: Identity) -> None:
        """Raises Close, Refused: before the first byte of an answer."""
        caller = caller_of(identity, _client_id(ask, identity), exchange.request.scope)
        self._limiters.take_read(caller.subject)
        transport = EventTransport(exchange, begin(retry_ms=random.randint(*RETRY_MS)))
        reader = Reader(self._sessions, ask.conversation_id)
        view = Connection(
            transport,
            caller=caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=understood(ask.features),
            tally=self._tally,
            encode=reader.encode,
        )
        async with self._presence.of(view):
            await reader.begin(view, ask.position)
            with self._access.inside(identity, view):
                await transport.begin(view.connection_id)
                await view.run(partial(_live, view, transport, reader))


def _client_id(ask: Asked, identity: Identity) -> str:
    """Return the caller; a person needs no client id. Raises BadParams."""
    if ask.client_id is None and not identity.is_person:
        raise BadParams("client_id: is missing.")
    return ask.client_id or secrets.token_hex(16)


async def _live(
    view: Connection, transport: EventTransport, reader: Reader, tasks: asyncio.TaskGroup
) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(reader.follow(view))
    await transport.receive()


async def _come_back(exchange: Exchange) -> None:
    """Answer with what is no refusal: after a refusal an EventSource never reconnects."""
    await exchange.begin_events("draining")
    await exchange.write(begin(retry_ms=RETRY_MS[1]), more=False)


def events_routes(door: EventsDoor, origins: Origins, refusals: Refusals) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CrossOrigin(door, origins, refusals, method="GET", refusal=foreign_page)
    return [Route(PATH, shown, methods=["GET", "OPTIONS"])]
