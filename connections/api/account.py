"""The service's own HTTP endpoints: a conversation's events, images, shares, tickets for pages, export and erasure of an owner's data."""

from __future__ import annotations

import asyncio
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import ClassVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.api.endpoint import (
    AbortOnRevocation,
    Erased,
    EventTransport,
    OwnerDataService,
    PageRoutes,
    identity_or_ticket,
)
from connections.authentication.access import TICKET_S, AccessControl
from connections.authentication.api_keys import Identity
from connections.authentication.caller import Caller, address_group, caller_of, named_caller
from connections.connection import Connection
from connections.http import (
    EndpointName,
    Exchange,
    json_response,
    optional_id,
    parse_id,
    refusal_response,
    sse,
)
from connections.images import MAX_BYTES, InvalidImage, image_from_bytes
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.protocol import codec
from connections.protocol.base import Features, KeyScope, common_features
from connections.protocol.errors import BadParams, Close, CloseCode, validation_problem
from connections.protocol.frames import MAX_SEQ, Frame
from sessions.commands.resumption import ReaderPosition
from sessions.conversation.conversation import refusal_of
from sessions.conversation.history_page import HistoryPage
from sessions.errors import NotFound, Refused
from sessions.events import Accepted, Attachment, Deleted, Gap, Journalled, Resumed, Snapshot
from sessions.limits.rates import FrameCost
from sessions.limits.shares import Subject
from sessions.limits.slots import on_behalf_of
from sessions.service import Sessions
from sessions.store.codec import Keys
from sessions.turn.prompt import NO_IMAGES

EXPORT_WEIGHT = 10
"""Reads that an export or erasure counts as."""
OwnerAction = Callable[[Exchange, Caller], Awaitable[None]]
_REVALIDATED = "private, no-cache"
"""A browser keeps the image, but shows it only after the server has said that its user may still see it."""
NO_INDEX_HEADERS = {"X-Robots-Tag": "noindex, nofollow"}
EVENTS_PATH = "/v1/conversations/{conversation_id}/events"
RETRY_MS = (1000, 3000)
"""Spreads the reconnections of readers when the server stops."""
PAGE = 50
"""Messages of the history for a reader: as for a WebSocket."""
UNKNOWN_POSITION = ReaderPosition("", 0)
"""A position that no conversation has: resuming from it gives a gap."""


def account_routes(
    *,
    sessions: Sessions,
    owners: OwnerDataService,
    access: AccessControl,
    lifecycle: ConnectionLifecycle,
    limiters: Limiters,
) -> list[BaseRoute]:
    """Return the routes below `/v1`."""
    route = PageRoutes(access.origins, limiters.refusals).route
    events = EventsEndpoint(sessions=sessions, access=access, lifecycle=lifecycle, limiters=limiters)
    attachments = AttachmentsEndpoint(sessions=sessions, access=access, limiters=limiters)
    account = AccountEndpoint(acts=owners, access=access, limiters=limiters)
    return [
        route(EVENTS_PATH, events, "GET"),
        route("/v1/attachments", attachments.serve(attachments.upload, KeyScope.CHAT), "POST"),
        route(
            "/v1/attachments/{conversation_id}/{attachment_id}", attachments.serve(attachments.read), "GET"
        ),
        route("/v1/shares/{share_id}", SharesEndpoint(sessions, limiters), "GET"),
        route("/v1/export", account.serve(account.export, weight=EXPORT_WEIGHT), "GET"),
        route("/v1/me", account.serve(account.erase, KeyScope.MANAGE, weight=EXPORT_WEIGHT), "DELETE"),
        route("/v1/tickets", TicketEndpoint(access, limiters), "POST"),
    ]


class OwnerEndpoint:
    """Serves requests of owners. An application's key, or a client without authentication, names its user by `client_id`."""

    endpoint: ClassVar[EndpointName]

    def __init__(self, *, access: AccessControl, limiters: Limiters) -> None:
        self.access = access
        self.limiters = limiters

    async def identify(self, authorization: str | None) -> Identity:
        """Return the identity behind a header. Raises Refused."""
        return await self.access.identify(authorization=authorization)

    def serve(self, act: OwnerAction, required: KeyScope = KeyScope.READ, *, weight: int = 1) -> ASGIApp:
        """Wrap `act` for keys with the scope `required`. `chat` counts as messages, others as reads; `weight`: how many."""
        counts = FrameCost.MESSAGE if required is KeyScope.CHAT else FrameCost.READ

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            exchange = Exchange(scope, receive, send)
            if why := await refusal_of(self._respond(exchange, act, required, counts, weight)):
                await self.limiters.refuse(exchange, self.endpoint, why)

        return app

    async def _respond(
        self, exchange: Exchange, act: OwnerAction, required: KeyScope, counts: FrameCost, weight: int
    ) -> None:
        """Raises Refused."""
        try:
            identity = await self.identify(exchange.request.headers.get("authorization"))
            identity.grant.check(required)
            caller = named_caller(identity, exchange.request)
            self.limiters.take(counts, caller.subject, weight)
            with on_behalf_of(caller.store_group):
                await act(exchange, caller)
        except ClientDisconnect:
            exchange.cut_off()


class AccountEndpoint(OwnerEndpoint):
    """`GET /v1/export` and `DELETE /v1/me`: an owner's stored data. A ticket, which is in a URL, is not accepted."""

    endpoint = EndpointName.ACCOUNT

    def __init__(self, *, acts: OwnerDataService, access: AccessControl, limiters: Limiters) -> None:
        super().__init__(access=access, limiters=limiters)
        self._acts = acts

    async def identify(self, authorization: str | None) -> Identity:
        """Return the identity of a key or a JWT. Raises Refused."""
        return await self.access.identify_without_ticket(authorization=authorization)

    async def export(self, exchange: Exchange, caller: Caller) -> None:
        """Answer with all conversations and messages, one a line. Raises Refused."""
        try:
            with self.access.watch(caller.identity, AbortOnRevocation(exchange)):
                await self._acts.export(exchange, caller.owner, caller.subject)
        except TimeoutError:
            exchange.cut_off()

    async def erase(self, exchange: Exchange, caller: Caller) -> None:
        """Erase all conversations; answer with how many. Raises Refused."""
        await exchange.answer(json_response(Erased(await self._acts.erase(caller.owner, caller.subject))))


class TicketGiven(msgspec.Struct, frozen=True):
    """A ticket and its lifetime."""

    ticket: str
    expires_in_s: int


class PlainEndpoint(ABC):
    """Answers each request at once, and needs no owner."""

    endpoint: ClassVar[EndpointName]

    def __init__(self, limiters: Limiters) -> None:
        self.limiters = limiters

    @abstractmethod
    async def answer(self, request: Request) -> Response:
        """Return the answer. Raises Refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            response = await self.answer(Request(scope, receive))
        except Refused as why:
            self.limiters.refusals.count_error(self.endpoint, why.code)
            response = refusal_response(why)
        await response(scope, receive, send)


class TicketEndpoint(PlainEndpoint):
    """`POST /v1/tickets`: a single-use ticket for a browser's page, which can't set headers on a WebSocket."""

    endpoint = EndpointName.TICKETS

    def __init__(self, access: AccessControl, limiters: Limiters) -> None:
        super().__init__(limiters)
        self._access = access

    async def answer(self, request: Request) -> Response:
        """Return `{ticket, expires_in_s}`. Raises Refused."""
        if self._access.allows_anonymous:
            raise NotFound("Authentication is off: no ticket is needed.")
        ticket = await self._access.ticket(
            authorization=request.headers.get("authorization"),
            admit=lambda identity: self.limiters.take_ticket(identity, request.scope),
        )
        return json_response(TicketGiven(ticket, TICKET_S))


class BadImage(Refused):
    """The upload is not an image of a supported kind."""

    code = "invalid_image"


class AttachmentsEndpoint(OwnerEndpoint):
    """`POST /v1/attachments` and `GET /v1/attachments/{conversation_id}/{id}`: takes images, and serves them to owners."""

    endpoint = EndpointName.ATTACHMENTS

    def __init__(self, *, sessions: Sessions, access: AccessControl, limiters: Limiters) -> None:
        super().__init__(access=access, limiters=limiters)
        self._sessions = sessions

    async def upload(self, exchange: Exchange, caller: Caller) -> None:
        """Store an image, and answer with its id. Raises Refused, ClientDisconnect."""
        if not self._sessions.choice.takes_images:
            raise BadParams(NO_IMAGES)
        with ExitStack() as body_lease:
            body = await exchange.body(
                partial(self.limiters.lease_body, caller.subject, body_lease, "uploads"), most=MAX_BYTES
            )
            try:
                image = image_from_bytes(body)
            except InvalidImage as why:
                raise BadImage(str(why)) from None
            await self._sessions.images.keep(caller.owner, image, group=caller.group)
        await exchange.answer(json_response(Attachment.of(image)))

    async def read(self, exchange: Exchange, caller: Caller) -> None:
        """Answer with an image that a conversation of the caller shows. Raises Refused."""
        named = exchange.request.path_params
        conversation_id = parse_id("conversation_id", named["conversation_id"])
        keys, digest = Keys.of(caller.owner, conversation_id), named["attachment_id"]
        if (image := (await self._sessions.images.read(keys, [digest])).get(digest)) is None:
            raise NotFound("Attachment not found.")
        headers = {
            "Cache-Control": _REVALIDATED,
            "ETag": (tag := f'"{named["attachment_id"]}"'),
            "Vary": "Authorization",
            "Content-Disposition": "inline",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
        }
        if exchange.request.headers.get("if-none-match") == tag:
            await exchange.answer(Response(status_code=304, headers=headers))
        else:
            await exchange.answer(Response(image.data, headers=headers, media_type=image.media_type))


class SharesEndpoint(PlainEndpoint):
    """`GET /v1/shares/{id}`: a conversation that its owner shared, for anybody with the link, without authentication."""

    endpoint = EndpointName.SHARES

    def __init__(self, sessions: Sessions, limiters: Limiters) -> None:
        super().__init__(limiters)
        self._sessions = sessions

    async def answer(self, request: Request) -> Response:
        """Return `{title, messages, has_more}`. Raises Refused."""
        group = address_group(request.scope)
        self.limiters.take_read(Subject(f"/shares/{group}", group))
        share_id: str = request.path_params["share_id"]
        with on_behalf_of(group or "/shares"):
            page = await self._sessions.shared(share_id, before=request.query_params.get("before"))
        return json_response(page, headers=NO_INDEX_HEADERS)


class EventsEndpoint:
    """`GET /v1/conversations/{id}/events`: a conversation's events as server-sent events (HTML Standard, section 9.2).

    A reader gets missed events or the current state, then live events: the stream is a connection, and lasts as long
    as the reader stays. The `id` of an event is its epoch and its seq. EventSource sends the last one in
    `Last-Event-ID` when it reconnects by itself; a page that has to make a new EventSource, because a ticket opens one
    stream, puts that id into the query as `last_event_id`.
    """

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
            await self._limiters.refuse(exchange, EndpointName.EVENTS, failed)

    async def _serve(self, exchange: Exchange) -> None:
        """Raises Refused."""
        try:
            request = parse_request(exchange.request)
            authorization = exchange.request.headers.get("authorization")
            identity = await identity_or_ticket(self._access, authorization, request.ticket)
            identity.grant.check(KeyScope.READ)
            await self._stream(exchange, request, identity)
        except Close as why:
            if why.code is CloseCode.DRAIN:  # an EventSource never reconnects after a refusal
                await exchange.begin_events("draining")
                await exchange.write(first_line(retry_ms=RETRY_MS[1]), more=False)
            else:
                await self._limiters.refuse(exchange, EndpointName.EVENTS, why)

    async def _stream(self, exchange: Exchange, request: EventsRequest, identity: Identity) -> None:
        """Raises Close, Refused before the first byte of the answer."""
        if request.client_id is None and not identity.is_person:
            raise BadParams("is missing.", field="client_id")
        client_id = request.client_id or secrets.token_hex(16)
        caller = caller_of(identity, client_id, exchange.request.scope)
        self._limiters.take_read(caller.subject)
        transport = EventTransport(exchange, first_line(retry_ms=random.randint(*RETRY_MS)))
        reader = EventReader(self._sessions, request.conversation_id)
        view = Connection(
            transport,
            caller=caller,
            features=common_features(request.features),
            tally=self._tally,
            encode=reader.encode,
        )
        async with self._lifecycle.registered(view):
            await reader.begin(view, request.position)
            with self._access.watch(identity, view):
                await transport.begin(view.connection_id)
                await view.run(partial(_live, view, transport, reader))


async def _live(
    view: Connection, transport: EventTransport, reader: EventReader, tasks: asyncio.TaskGroup
) -> None:
    tasks.create_task(transport.send())
    tasks.create_task(reader.follow(view))
    await transport.receive()


class EventReader:
    """One reader's events, in order, and the requests that it can't send itself.

    Events have no names: each is a `message`, whose data is the frame as on a socket.
    """

    def __init__(self, sessions: Sessions, conversation_id: str) -> None:
        self._sessions = sessions
        self._conversation_id = conversation_id
        self._changed = asyncio.Event()
        self._needs_history = False  # a gap was sent, and no history since
        self._is_over = False
        self._epoch = ""

    def encode(self, frame: Frame) -> bytes:
        """Return the event of a frame. While the history is missing, events have no ids: reconnecting then repeats the gap."""
        match frame:
            case Accepted() | Resumed() | Snapshot():
                self._epoch = frame.epoch
            case Gap() | HistoryPage():
                self._epoch = frame.epoch
                self._needs_history = isinstance(frame, Gap)
            case Deleted():
                self._is_over = True
        if isinstance(frame, Gap | Deleted):
            self._changed.set()
        event = sse(codec.encode(frame))
        if self._needs_history or not isinstance(frame, Journalled | Snapshot | HistoryPage):
            return event
        return f"id: {event_id(self._epoch, frame.seq)}\n".encode() + event

    async def begin(self, view: Connection, position: ReaderPosition | None) -> None:
        """Attach `view`; its first events wait in its outbox. Raises Refused."""
        if position is None:
            await self._show_history(view)
        else:
            await self._sessions.resume(view.owner, view, self._conversation_id, position, ref=None)

    async def follow(self, view: Connection) -> None:
        """Send the history after every gap, until the conversation ends."""
        while not self._is_over:
            await self._changed.wait()
            self._changed.clear()
            if self._needs_history:
                try:
                    await self._show_history(view)
                except Refused as refused:  # a reconnecting reader gets the reason
                    view.shut(Close(CloseCode.INTERNAL, str(refused)))
                    return
        view.shut(Close(CloseCode.BYE, "The conversation was deleted or has expired."))

    async def _show_history(self, view: Connection) -> None:
        shown = await self._sessions.history(view.owner, view, self._conversation_id, limit=PAGE)
        view.publish(shown.page)
        if shown.wait is not None:
            view.publish(shown.wait)


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`position`: None for a new reader. `client_id`: None if the reader gave none.

    `features`: what the reader understands beyond the base.
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
    """Parse comma-separated names of features. Raises BadParams."""
    try:
        return msgspec.convert(tuple(filter(None, named.split(","))), Features)
    except msgspec.ValidationError as error:
        raise BadParams(validation_problem(error).why, field="features") from None


def first_line(*, retry_ms: int) -> bytes:
    """Return the first line: the reconnection time."""
    return b"retry: %d\n\n" % retry_ms
