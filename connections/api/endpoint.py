"""What endpoints share: a request's client and its rights, streams of events, the export and erasure of an owner's data.

Clients have the same keys, tokens, names and limits as on a WebSocket.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from connections.api.replies import ReplySource
from connections.api.requests import (
    invalid_field,
    problem_of,
    with_client_field,
)
from connections.authentication.access import TICKET, AccessControl, bearer
from connections.authentication.api_keys import Identity
from connections.authentication.caller import Caller, caller_of, client_id_of
from connections.connection import Disconnected
from connections.http import EndpointName, Exchange, RefusalCounters, forbidden_origin
from connections.limiters import Limiters, slot
from connections.middleware import AllowedOrigins, CorsMiddleware, client_address_of
from connections.native.server_info import ServerInfo
from connections.protocol.base import Grant, KeyScope, Limits
from connections.protocol.errors import Close, Unauthenticated
from connections.protocol.frames import Frame
from connections.websocket_endpoint import WebSocketEndpoint
from engine.errors import EngineError
from engine.served_models import ServedModel
from sessions.conversation.conversation import refusal_of
from sessions.errors import BadParams, EngineDown, Forbidden, ModelNotFound, Refused
from sessions.limits.bounds import LARGE_BODY_BYTES
from sessions.limits.rates import FrameCost
from sessions.limits.shares import FairShare, Subject
from sessions.limits.slots import on_behalf_of
from sessions.records import Owner
from sessions.running.ephemeral import EphemeralReply, EphemeralRequest
from sessions.service import Sessions
from sessions.store.owner_data import ExportedConversation, ExportedMessage

T = TypeVar("T")
R = TypeVar("R")
IGNORED_HEADER = "X-Midstream-Ignored"
"""The header with the ignored fields of a request: hints, and, if the operator allows it, tools that can't be called."""
G = TypeVar("G")
WAITING_BYTES = 32 * 1024
PIECE_BYTES = 16 * 1024
"""Bytes for the server at once: it keeps what its peer does not read, and a whole page would be in memory twice."""
BEAT_S = 15.0
"""Most proxies close a connection that is silent for a minute."""
CLOSE_S = 2.0
HEARTBEAT = b":\n\n"
"""A comment, which shows that the connection is alive."""
AT_ONCE = 16
"""Concurrent exports of this replica, and as many erasures. An owner may have one of each, an address half of those free."""
PART_S = 10.0
"""Most seconds for a client to read a part of an export (64 KiB); a slower one is cut off."""
LONGEST_S = 600.0
"""Most seconds of an export."""
PART_BYTES = 64 * 1024
_HEADERS = [
    (b"content-type", b"application/x-ndjson; charset=utf-8"),
    (b"content-disposition", b'attachment; filename="conversations.jsonl"'),
    (b"cache-control", b"no-store"),
]
_BUSY = "The server is busy with other exports or erasures; try again in a moment."
_log = structlog.get_logger("midstream.account")


class AbortOnRevocation:
    """An HTTP answer as a connection, cut off when the caller's key is revoked.

    `at_expiry`: also as soon as the JWT expires, since it can't be renewed here.
    """

    def __init__(self, exchange: Exchange, *, at_expiry: bool = True) -> None:
        self._exchange = exchange
        self._at_expiry = at_expiry

    def push(self, frame: Frame) -> None:  # noqa: ARG002 - an HTTP answer has no place for it
        """Cut the answer off at an expiry."""
        if self._at_expiry:
            self._exchange.cut_off()

    def shut(self, close: Close) -> None:  # noqa: ARG002 - the log has the reason
        """Cut the answer off."""
        self._exchange.cut_off()


class RequestContext:
    """Admits every request of these endpoints."""

    def __init__(
        self,
        *,
        access: AccessControl,
        limiters: Limiters,
        server_info: ServerInfo,
        refuses_tools: bool = False,
    ) -> None:
        """`refuses_tools`: requests with tools that can't be offered are refused, not answered without them."""
        self._refuses_tools = refuses_tools
        self._access = access
        self._limiters = limiters
        self._server_info = server_info
        self._thread_lock = asyncio.Lock()

    def models(self, grant: Grant) -> tuple[ServedModel, ...]:
        """Return the served models that the client may use, the default first."""
        return self._server_info.models_for(grant)

    def names(self, grant: Grant) -> list[str]:
        """Return the names and aliases of `models`."""
        return [name for model in self.models(grant) for name in (model.name, *model.aliases)]

    async def caller(self, request: Request, token: str | None = None) -> Caller:
        """Return the client. `token`: for clients that do not send it in `Authorization`. Raises Refused."""
        authorization = request.headers.get("authorization")
        identity = await self.identity(authorization, token)
        bearer_token = bearer(authorization)
        name = client_id_of(identity, token if bearer_token is None else bearer_token, request.scope)
        return caller_of(identity, name, request.scope)

    async def identity(self, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity of a header, or else of a token. Raises Refused."""
        return await self._access.identify(authorization=authorization, token=token)

    async def run_while_valid(
        self, exchange: Exchange, caller: Caller, work: Coroutine[None, None, None]
    ) -> None:
        """Do the work while the client is there and its token valid. Raises ClientDisconnect if not."""
        with self._access.watch(caller.identity, AbortOnRevocation(exchange, at_expiry=False)):
            await exchange.cancel_on_disconnect(work)

    def model(self, name: str | None, grant: Grant) -> ServedModel:
        """Return the named model, or else the first that the client may use. Raises ModelNotFound, Forbidden."""
        allowed = self.models(grant)
        if name is None and allowed:
            return allowed[0]
        if (model := self._server_info.model(name)) is None:
            raise ModelNotFound(name or "", [one.name for one in allowed])
        if model not in allowed:
            raise Forbidden(f'This key may not use the model "{model.name}".')
        return model

    async def limits(self, model: ServedModel) -> Limits:
        """Return the limits of a model; wait a moment if none is loaded. Raises EngineDown."""
        try:
            return await self._server_info.limits(model)
        except EngineError as error:
            raise EngineDown("The model is not loaded yet.") from error

    def take(self, caller: Caller, messages: int = 1, *, counts: FrameCost = FrameCost.MESSAGE) -> None:
        """Count messages on this replica, the first before its body is read. `counts`: as what. Raises RateLimited."""
        for _ in range(messages):
            self._limiters.take(counts, caller.subject)

    async def read(
        self, exchange: Exchange, caller: Caller, body_lease: ExitStack, decode: Callable[[bytes], T]
    ) -> T:
        """Read a request's body. Raises Refused, ClientDisconnect."""
        body = await exchange.body(
            partial(self._limiters.lease_body, caller.subject, body_lease, "long requests")
        )
        return await self.run_in_thread(exchange, partial(decode, body))

    async def run_in_thread(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Return the result of work whose duration grows with the request's body.

        Four megabytes take longer than the time between two tokens, so a thread works on long bodies. It is one
        thread, since the event loop would have to wait for each of several. If the client leaves, this still waits for
        the thread, which can't be stopped: no other may work meanwhile.
        """
        if exchange.body_bytes <= LARGE_BODY_BYTES:
            return work()
        async with self._thread_lock:
            task = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                await asyncio.gather(task, return_exceptions=True)
                raise
            finally:
                # An error's traceback holds this frame, and with it the task, the error and the body.
                del task

    def refusal(self, refused: Refused, endpoint: EndpointName) -> Response:
        """Return the answer to a refused request, and count it."""
        self.count_error(refused, endpoint)
        return problem_of(refused).response()

    def count_error(self, refused: Refused, endpoint: EndpointName) -> None:
        """Count a refusal that is sent."""
        self._limiters.refusals.count_error(endpoint, refused.code)

    async def count(self, caller: Caller, messages: int = 1) -> None:
        """Count messages on all replicas. Raises RateLimited."""
        with on_behalf_of(caller.store_group):
            for _ in range(messages):
                await self._limiters.admit(caller.client)

    def used(self, caller: Caller, tokens: int) -> None:
        """Count tokens outside turns."""
        if (meter := self._limiters.quota_limiter) is not None:
            meter.used(caller.client, tokens)

    def for_caller(
        self, caller: Caller, ask: EphemeralRequest, model: ServedModel, names: Mapping[str, str]
    ) -> EphemeralRequest:
        """Return `ask` for its caller and a model. `names`: as in `with_client_field`. Raises Problem."""
        if self._refuses_tools and (left_out := [name for name in ask.ignored if name.startswith("tools[")]):
            raise invalid_field(f"{left_out[0]}.type", "is the type of a tool that can't be called here.")
        return msgspec.structs.replace(
            ask,
            client_id=caller.client.client_id,
            group=caller.group,
            model=model.name,
            ignored=ignored_fields(model, ask, names),
        )


async def identity_or_ticket(
    access: AccessControl, authorization: str | None, ticket: str | None
) -> Identity:
    """Return the identity behind a header, or else a ticket in the URL. Raises Refused.

    A lasting token must not be in a URL.
    """
    if ticket is not None and not (ticket.startswith(TICKET) or access.allows_anonymous):
        raise Unauthenticated("Only tickets are allowed in a URL.", why="no ticket in the URL")
    return await access.identify(authorization=authorization, token=ticket)


def ignored_fields(model: ServedModel, ask: EphemeralRequest, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ignored fields of a request: those that its endpoint ignores, and a reasoning effort unknown to the model."""
    facts = model.engine.facts
    knows = facts is None or "effort" in facts.features or ask.spec.reasoning in ("auto", "off", "least")
    return ask.ignored if knows else (*ask.ignored, names.get("reasoning", "reasoning"))


class HttpEndpoint(ABC, Generic[R]):
    """Answers or refuses requests, in its protocol's terms. A client that leaves ends the work for it."""

    endpoint: ClassVar[EndpointName]
    counts: ClassVar[FrameCost] = FrameCost.MESSAGE
    """What each request counts as."""

    def __init__(self, request_context: RequestContext) -> None:
        self.request_context = request_context

    @abstractmethod
    def read(self, body: bytes) -> R:
        """Return the request in a body. Raises Refused."""

    @abstractmethod
    async def serve(self, exchange: Exchange, caller: Caller, request: R, body_lease: ExitStack) -> None:
        """Answer a request while its client is there. `body_lease`: held while a large body is in memory. Raises Refused."""

    def token(self, request: Request) -> str | None:  # noqa: ARG002 - most have it in no other place
        """Return a token outside the `Authorization` header."""
        return None

    def required_scope(self, request: Request) -> KeyScope:  # noqa: ARG002 - most have a model answer
        """Return the scope that a key needs."""
        return KeyScope.CHAT

    def refusal(self, refused: Refused) -> Response:
        """Return the answer to a refused request."""
        return problem_of(refused).response()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        refused = await refusal_of(self._serve(exchange))
        if refused is not None and not exchange.begun:
            self.request_context.count_error(refused, self.endpoint)
            await exchange.answer(self.refusal(refused))

    async def _serve(self, exchange: Exchange) -> None:
        """Serve a request. Raises Refused."""
        with suppress(ClientDisconnect):
            caller = await self.request_context.caller(exchange.request, self.token(exchange.request))
            caller.grant.check(self.required_scope(exchange.request))
            self.request_context.take(caller, counts=self.counts)
            with ExitStack() as body_lease:
                request = await self.request_context.read(exchange, caller, body_lease, self.read)
                work = self.serve(exchange, caller, request, body_lease)
                await self.request_context.run_while_valid(exchange, caller, work)


class ModelRequest(Protocol):
    """A request with a model's name."""

    @property
    def model(self) -> str | None:
        """The requested model; None: the default."""


M = TypeVar("M", bound=ModelRequest)


class ModelEndpoint(HttpEndpoint[M]):
    """Asks a model for any client."""

    def __init__(self, sessions: Sessions, request_context: RequestContext) -> None:
        super().__init__(request_context)
        self.sessions = sessions

    @abstractmethod
    def turn_request(self, request: M, limits: Limits) -> EphemeralRequest:
        """Return the turn's request. Raises Refused."""

    @abstractmethod
    def names(self, request: M) -> Mapping[str, str]:
        """Return the client's names of fields that lower layers name differently."""

    @abstractmethod
    async def answer(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Answer a request; `body_lease` as in `serve`. Raises Refused; its field may have a lower layer's name."""

    async def build_request(self, exchange: Exchange, caller: Caller, request: M) -> EphemeralRequest:
        """Return the turn's request for a caller. Raises Refused."""
        model = self.request_context.model(request.model, caller.grant)
        limits = await self.request_context.limits(model)
        ask = await self.request_context.run_in_thread(exchange, lambda: self.turn_request(request, limits))
        return self.request_context.for_caller(caller, ask, model, self.names(request))

    async def serve(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Answer a request. Raises Refused, with client field names."""
        try:
            await self.answer(exchange, caller, request, body_lease)
        except BadParams as refused:
            raise with_client_field(refused, self.names(request)) from None


class SingleReplyEndpoint(ModelEndpoint[M]):
    """Answers each request with a reply. A client that leaves stops its turn."""

    @abstractmethod
    async def send_reply(self, exchange: Exchange, request: M, reply: EphemeralReply) -> None:
        """Send a reply up to its end, of any kind. Raises Refused while nothing of it was sent."""

    async def answer(self, exchange: Exchange, caller: Caller, request: M, body_lease: ExitStack) -> None:
        """Have a turn write the reply. Raises Refused."""
        turn_request = await self.build_request(exchange, caller, request)
        await self.request_context.count(caller)
        reply = await self.sessions.ephemeral.answer(caller.owner, turn_request)
        body_lease.close()
        try:
            await self.send_reply(exchange, request, reply)
        finally:
            reply.cancel()


class PageRoutes(NamedTuple):
    """Makes routes with answers that pages of these origins can read; counts refusals of other pages."""

    origins: AllowedOrigins
    refusals: RefusalCounters

    def route(
        self,
        path: str,
        app: ASGIApp,
        method: str,
        refusal: Callable[[str | None], Response] = forbidden_origin,
    ) -> Route:
        """Return a route. `method`: one, or several with commas between them."""
        shown = CorsMiddleware(app, self.origins, self.refusals, method=method, refusal=refusal)
        return Route(path, shown, methods=[*method.split(", "), "OPTIONS"])


def ignored_header(reply: ReplySource[object]) -> dict[str, str]:
    """Return the header with the ignored fields, if there are any."""
    return {IGNORED_HEADER: ", ".join(reply.ignored)} if reply.ignored else {}


class ApiWebSocketEndpoint(WebSocketEndpoint[G]):
    """Serves sockets whose handshake identifies the client."""

    @abstractmethod
    async def handshake_info(self, websocket: WebSocket) -> G:
        """Return the client and its request. Raises Refused."""

    async def read_handshake(self, websocket: WebSocket) -> G | Response:
        """Return the client, or the response that refuses it."""
        try:
            with self.limiters.handshake_limit.slot(client_address_of(websocket.scope)):
                return await self.handshake_info(websocket)
        except Refused as refused:
            self.tally.sent(refused.code)
            return problem_of(refused).response()


class EventTransport:
    """Written events wait here until the server takes them, up to a limit. `send` must be running."""

    def __init__(self, exchange: Exchange, first: bytes) -> None:
        self._exchange = exchange
        self._buffer = bytearray(first)
        self._written = asyncio.Event()
        self._drained = asyncio.Event()
        self._is_idle = True
        self._written.set()

    async def begin(self, request_id: str, more: Mapping[str, str] | None = None) -> None:
        """Begin the answer, and write the first events that waited for it. `more`: headers."""
        await self._exchange.begin_events(request_id, more)
        if (piece := bytes(self._buffer[:PIECE_BYTES])) and self._exchange.write_nowait(piece):
            del self._buffer[: len(piece)]

    async def receive(self) -> str | bytes:
        """Wait until the reader has left: it can't send anything. Raises Disconnected then."""
        await self._exchange.left()
        raise Disconnected

    def is_writable(self) -> bool:
        """Whether more may be written."""
        return len(self._buffer) < WAITING_BYTES

    async def writable(self) -> None:
        """Wait until the server has taken what waits."""
        while not self.is_writable():
            self._drained.clear()
            await self._drained.wait()

    def write(self, text: bytes) -> None:
        """Send events, at once if nothing waits before them and the peer reads."""
        self._is_idle = False
        if not text or (not self._buffer and self._exchange.write_nowait(text)):
            return
        self._buffer += text
        self._written.set()

    def write_binary(self, message: bytes) -> None:
        """Drop it: readers of events get no sound."""

    def charge(self) -> None:
        """Do nothing: a reader sends no requests."""

    def request(self) -> AbstractContextManager[None]:
        """Return a null context: a reader sends no requests."""
        return nullcontext()

    async def send(self) -> None:
        """Give the server what waits, as fast as the peer reads, and heartbeats in pauses, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._written.wait()
            except TimeoutError:
                if self._is_idle:
                    # Keep what was written in the same turn of the loop.
                    self._buffer = self._buffer or bytearray(HEARTBEAT)
            self._is_idle = True
            self._written.clear()
            while self._buffer:
                await self._send_piece()

    async def _send_piece(self) -> None:
        """Send one piece. It stays here until the server has taken it, so a cancellation loses nothing."""
        piece = bytes(self._buffer[:PIECE_BYTES])
        await self._exchange.write(piece)
        del self._buffer[: len(piece)]
        self._drained.set()

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002 - an event stream can't say why
        """End the answer: readers reconnect."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._buffer:
                    await self._send_piece()
                await self._exchange.write(b"", more=False)
        except TimeoutError:
            await self._exchange.abort()


class Erased(msgspec.Struct, frozen=True):
    """The answer to an erasure."""

    conversations: int


class ExportEnd(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    """The last line of an export: one without it was cut off."""

    conversations: int


class _Progress:
    """The number of conversations done so far."""

    conversations = 0


class OwnerDataService:
    """Exports and erases data. A caller has one of each at a time; no erasure waits behind slow exports."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._exports = FairShare(AT_ONCE)
        self._erasures = FairShare(AT_ONCE)

    async def export(self, exchange: Exchange, owner: Owner, subject: Subject) -> None:
        """Answer with all conversations and messages, one a line. Raises Refused, ClientDisconnect, TimeoutError."""
        with slot(self._exports, subject, _BUSY), _logged("exported", owner) as tally:
            async with asyncio.timeout(LONGEST_S):
                await exchange.cancel_on_disconnect(self._export(exchange, owner, tally))

    async def _export(self, exchange: Exchange, owner: Owner, tally: _Progress) -> None:
        rows = self._sessions.export(owner)
        lines = _line(await anext(rows, None))  # a store outage shows before the answer begins
        tally.conversations = int(bool(lines))
        await exchange.begin(_HEADERS)
        async for one in rows:
            tally.conversations += isinstance(one, ExportedConversation)
            lines += _line(one)
            if len(lines) >= PART_BYTES:
                await _write(exchange, bytes(lines))
                lines.clear()
        lines += _line(ExportEnd(tally.conversations))
        await _write(exchange, bytes(lines), more=False)

    async def erase(self, owner: Owner, subject: Subject) -> int:
        """Erase, and return the number of conversations. Continues if the client leaves: nobody wants half an erasure.

        Raises Refused.
        """
        return await asyncio.shield(asyncio.ensure_future(self._erase(owner, subject)))

    async def _erase(self, owner: Owner, subject: Subject) -> int:
        with slot(self._erasures, subject, _BUSY), _logged("erased", owner) as tally:
            async for _ in self._sessions.erase(owner):
                tally.conversations += 1
        return tally.conversations


async def _write(exchange: Exchange, part: bytes, *, more: bool = True) -> None:
    """Raises TimeoutError, ClientDisconnect."""
    async with asyncio.timeout(PART_S):
        await exchange.write(part, more=more)


@contextmanager
def _logged(event: str, owner: Owner) -> Iterator[_Progress]:
    """Log what was done, also if it was cut short."""
    tally, is_done = _Progress(), False
    try:
        yield tally
        is_done = True
    finally:
        cut = {} if is_done else {"cut_short": True}
        _log.info(event, principal=owner.principal, conversations=tally.conversations, **cut)


def _line(row: ExportedConversation | ExportedMessage | ExportEnd | None) -> bytearray:
    return bytearray() if row is None else bytearray(msgspec.json.encode(row) + b"\n")
