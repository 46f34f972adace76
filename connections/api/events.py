"""`GET /v1/conversations/{id}/events`: a conversation's events for readers, as server-sent events (HTML Standard, section 9.2).

A reader gets missed events or the current state, then live events. The `id` of an event is its epoch and its seq. EventSource
sends the last one in `Last-Event-ID` when it reconnects by itself; a page that has to make a new one, because a ticket opens
one stream, puts it into the query as `last_event_id`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from connections.api.endpoint import identity_or_ticket
from connections.api.event_transport import EventTransport
from connections.authentication.access import AccessControl
from connections.authentication.caller import caller_of
from connections.authentication.identity import Identity
from connections.connection import Connection
from connections.http.exchange import Exchange
from connections.http.inputs import optional_id, parse_id
from connections.http.json_responses import error_code_of, forbidden_origin, refusal_response
from connections.http.refusal_counters import EndpointName, RefusalCounters
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.middleware.origins import AllowedOrigins, CorsMiddleware
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.base import Features, common_features
from connections.protocol.errors import BadParams, Close, CloseCode, Unauthenticated, validation_problem
from connections.protocol.frames import MAX_SEQ, Frame
from connections.protocol.scopes import KeyScope
from sessions.commands.resumption import ReaderPosition
from sessions.conversation.conversation import refusal_of
from sessions.conversation.history_page import HistoryPage
from sessions.errors import Refused
from sessions.events import Accepted, Deleted, Gap, Journalled, Resumed, Snapshot
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.service import Sessions

PATH = "/v1/conversations/{conversation_id}/events"
RETRY_MS = (1000, 3000)
"""Spreads the reconnections of readers when the server stops."""
PAGE = 50
"""Messages of the history for a reader: the default of sockets."""
UNKNOWN_POSITION = ReaderPosition("", 0)
"""A position that no conversation has: resuming from it gives a gap."""


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
        transport = EventTransport(exchange, first_line(retry_ms=random.randint(*RETRY_MS)))
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
    await exchange.write(first_line(retry_ms=RETRY_MS[1]), more=False)


def events_routes(
    endpoint: EventsEndpoint, origins: AllowedOrigins, refusals: RefusalCounters
) -> list[BaseRoute]:
    """Return the route below `/v1`."""
    shown = CorsMiddleware(endpoint, origins, refusals, method="GET", refusal=forbidden_origin)
    return [Route(PATH, shown, methods=["GET", "OPTIONS"])]


class EventReader:
    """Sends requests for a reader, which can't send any."""

    def __init__(self, sessions: Sessions, conversation_id: str) -> None:
        self._sessions = sessions
        self._conversation_id = conversation_id
        self._encoder = EventStreamEncoder()
        self._changed = asyncio.Event()

    def encode(self, frame: Frame) -> bytes:
        """Return the event of a frame."""
        if isinstance(frame, Gap | Deleted):
            self._changed.set()
        return self._encoder.encode(frame)

    async def begin(self, view: Connection, position: ReaderPosition | None) -> None:
        """Attach the reader; its first events then wait in it. Raises Refused."""
        if position is None:
            await self._show_history(view)
        else:
            await self._sessions.resume(view.owner, view, self._conversation_id, position, ref=None)

    async def follow(self, view: Connection) -> None:
        """Send the history after every gap, and end with the conversation."""
        while not self._encoder.is_over:
            await self._changed.wait()
            self._changed.clear()
            if self._encoder.needs_history:
                try:
                    await self._show_history(view)
                except Refused as refused:  # a reconnecting reader gets the reason
                    view.shut(Close(CloseCode.INTERNAL, str(refused)))
                    return
        view.shut(Close(CloseCode.BYE, "The conversation is gone."))

    async def _show_history(self, view: Connection) -> None:
        shown = await self._sessions.history(view.owner, view, self._conversation_id, limit=PAGE)
        view.publish(shown.page)
        if shown.wait is not None:
            view.publish(shown.wait)


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`position` None: the reader comes for the first time; `client_id` None: it gave none.

    `features`: what it understands beyond the base.
    """

    conversation_id: str
    client_id: str | None
    ticket: str | None
    position: ReaderPosition | None
    features: Features = ()


def parse_request(request: Request) -> EventsRequest:
    """Read a request. Raises BadParams."""
    query = request.query_params
    last = request.headers.get("last-event-id") or query.get("last_event_id")
    return EventsRequest(
        conversation_id=parse_id("conversation_id", request.path_params["conversation_id"]),
        client_id=optional_id(query, "client_id"),
        ticket=query.get("ticket"),
        position=parse_position(last) if last else None,
        features=_features(query.get("features", "")),
    )


def event_id(epoch: str, seq: int) -> str:
    """Return the id of an event."""
    return f"{epoch}:{seq}"


def parse_position(shown: str) -> ReaderPosition:
    """Return the position after the event of this id; UNKNOWN_POSITION for an unknown id."""
    epoch, _, digits = shown.rpartition(":")
    if not (epoch and digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_SEQ))):
        return UNKNOWN_POSITION
    return ReaderPosition(epoch, min(int(digits), MAX_SEQ))


def _features(named: str) -> Features:
    """Read names that are separated by commas. Raises BadParams."""
    try:
        return msgspec.convert(tuple(filter(None, named.split(","))), Features)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field="features") from None


def first_line(*, retry_ms: int) -> bytes:
    """Return the first line: the reconnection time."""
    return b"retry: %d\n\n" % retry_ms


class EventStreamEncoder:
    """One reader's events, in order. They have no names: each is a `message`, whose data is the frame as on a socket.

    `needs_history`: a gap was sent, and no history since; `is_over`: the conversation is gone.
    """

    def __init__(self) -> None:
        self.needs_history = False
        self.is_over = False
        self._epoch = ""

    def encode(self, frame: Frame) -> bytes:
        """Return the event of a frame. While the history is missing, events have no ids: reconnecting then repeats the gap."""
        match frame:
            case Accepted() | Resumed() | Snapshot():
                self._epoch = frame.epoch
            case Gap() | HistoryPage():
                self._epoch = frame.epoch
                self.needs_history = isinstance(frame, Gap)
            case Deleted():
                self.is_over = True
        return self._id(frame) + b"data: " + codec.encode(frame) + b"\n\n"

    def _id(self, frame: Frame) -> bytes:
        match frame:
            case _ if isinstance(frame, Journalled | Snapshot | HistoryPage) and not self.needs_history:
                return f"id: {event_id(self._epoch, frame.seq)}\n".encode()
        return b""
