"""`GET /v1/conversations/{id}/events`: the endpoint for readers."""

from __future__ import annotations

import asyncio
import random
import secrets
from functools import partial

from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.api.event_transport import EventTransport
from connections.api.request_context import identity_or_ticket
from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.connection import Connection
from connections.events.reader import EventReader
from connections.events.request import EventsRequest, parse_request
from connections.events.sse_encoder import begin
from connections.http.exchange import Exchange
from connections.http.json_responses import error_code_of, forbidden_origin, refusal_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.limits.caller import caller_of
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.middleware.cors import CorsMiddleware
from connections.middleware.origins import AllowedOrigins
from connections.outbox import Outbox
from connections.protocol.base import common_features
from connections.protocol.errors import BadParams, Close, CloseCode, Unauthenticated
from connections.protocol.scopes import KeyScope
from connections.websocket_endpoint import OUTBOX_BYTES
from sessions.conversation.conversation import refusal_of
from sessions.errors import Refused
from sessions.service import Sessions

PATH = "/v1/conversations/{conversation_id}/events"
RETRY_MS = (1000, 3000)
"""Spreads the reconnections of readers when the server stops."""


class EventsEndpoint:
    """Answers requests with streams that last as long as their readers stay: connections like sockets in all else."""

    def __init__(
        self, *, sessions: Sessions, access: AccessControl, lifecycle: ConnectionLifecycle, limiters: Limiters
    ) -> None:
        self._sessions = sessions
        self._access = access
        self._lifecycle = lifecycle
        self._limiters = limiters
        self._tally = limiters.tally(EndpointName.EVENTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        if exchange.request.method == "HEAD":
            await exchange.answer(Response(status_code=405, headers={"Allow": "GET, OPTIONS"}))
            return
        failed = await refusal_of(self._serve(exchange))
        if failed is not None and not exchange.begun:
            await self._refuse(exchange, failed)

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        try:
            request = parse_request(exchange.request)
            authorization = exchange.request.headers.get("authorization")
            identity = await identity_or_ticket(self._access, authorization, request.ticket)
            identity.grant.check(KeyScope.READ)
            await self._stream(exchange, request, identity)
        except (BadParams, Unauthenticated, Close) as why:
            if isinstance(why, Close) and why.code is CloseCode.DRAIN:
                await _send_reconnect(exchange)
            else:
                await self._refuse(exchange, why)

    async def _refuse(self, exchange: Exchange, why: Refused | BadParams | Unauthenticated | Close) -> None:
        self._tally.sent(error_code_of(why))
        await exchange.answer(refusal_response(why))

    async def _stream(self, exchange: Exchange, request: EventsRequest, identity: Identity) -> None:
        """Raises Close, Refused: before the first byte of an answer."""
        caller = caller_of(identity, _client_id(request, identity), exchange.request.scope)
        self._limiters.take_read(caller.subject)
        transport = EventTransport(exchange, begin(retry_ms=random.randint(*RETRY_MS)))
        reader = EventReader(self._sessions, request.conversation_id)
        view = Connection(
            transport,
            caller=caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=common_features(request.features),
            tally=self._tally,
            encode=reader.encode,
        )
        async with self._lifecycle.of(view):
            await reader.begin(view, request.position)
            with self._access.watch(identity, view):
                await transport.begin(view.connection_id)
                await view.run(partial(_live, view, transport, reader))


def _client_id(request: EventsRequest, identity: Identity) -> str:
    """Return the caller; a person needs no client id. Raises BadParams."""
    if request.client_id is None and not identity.is_person:
        raise BadParams("client_id: is missing.")
    return request.client_id or secrets.token_hex(16)


async def _live(
    view: Connection, transport: EventTransport, reader: EventReader, tasks: asyncio.TaskGroup
) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(reader.follow(view))
    await transport.receive()


async def _send_reconnect(exchange: Exchange) -> None:
    """Answer with what is no refusal: after a refusal an EventSource never reconnects."""
    await exchange.begin_events("draining")
    await exchange.write(begin(retry_ms=RETRY_MS[1]), more=False)


def events_routes(
    endpoint: EventsEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CorsMiddleware(endpoint, origins, refusals, method="GET", refusal=forbidden_origin)
    return [Route(PATH, shown, methods=["GET", "OPTIONS"])]
