"""`GET /v1/responses` as a WebSocket: responses are sent as they are written, one after another or several at once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, assert_never

import msgspec
from starlette.websockets import WebSocket

from connections.api.endpoint import ApiWebSocketEndpoint, RequestContext
from connections.api.errors import Problem, invalid, metric_code, problem_of
from connections.api.responses import schema
from connections.api.responses.creator import ResponseCreator, StartedResponse
from connections.api.responses.encoder import encode_lines, output_messages
from connections.api.responses.parser import Creation, encode_messages, parse_response_request
from connections.authentication.access import AccessControl, bearer
from connections.authentication.caller import Caller, caller_of, client_id_of
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.connection import Connection, Disconnected, Transport
from connections.http.json_responses import type_of
from connections.http.refusal_counters import EndpointName
from connections.limiters import EndpointCounters, Limiters
from connections.manager import ConnectionLifecycle
from connections.outbox import Outbox
from connections.protocol import codec
from connections.protocol.errors import BadFrame, Close, CloseCode, shorten
from connections.protocol.frames import Error, Frame, ServerFrame
from connections.protocol.scopes import KeyScope
from connections.websocket_endpoint import MultilineTransport, WebSocketTransport
from engine.messages import Message
from sessions.conversation.conversation import refusal_of
from sessions.errors import Overloaded, Refused
from sessions.limits.bounds import OUTBOX_BYTES
from sessions.limits.rates import RateLimited

_SLOW_READER = Close(CloseCode.OVERLOAD, "The reader is too slow; reconnect.")
PendingWork = Coroutine[Any, Any, None]
MAX_STREAM_ID = 128
_CANCELS = ("midstream:response.cancel", "response.cancel")
MAX_STREAMS = 32
"""Lanes in use at a time."""
MAX_UNSTORED = 64
MAX_UNSTORED_BYTES = 256 * 1024
"""Bytes of the unstored conversations that a socket's client may continue; the oldest ones are forgotten."""
MAX_NEWEST_BYTES = 1024 * 1024
"""Bytes of the newest one, which may exceed that: a client with one long conversation can continue it."""


class HandshakeInfo(msgspec.Struct, frozen=True):
    """The client of a socket."""

    identity: Identity
    caller: Caller


class ResponsesWebSocketEndpoint(ApiWebSocketEndpoint[HandshakeInfo]):
    """Serves sockets for one response after another, or several at once. `creator` begins them."""

    def __init__(
        self,
        *,
        creator: ResponseCreator,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
    ) -> None:
        super().__init__(EndpointName.RESPONSES, access=access, limiters=limiters)
        self.creator = creator
        self._request_context = request_context
        self._lifecycle = lifecycle

    async def handshake_info(self, websocket: WebSocket) -> HandshakeInfo:
        """Return the client, by a key, a JWT, or a browser's ticket. Raises Refused."""
        authorization, ticket = websocket.headers.get("authorization"), websocket.query_params.get("ticket")
        token = ticket if ticket is not None and ticket.startswith(TICKET) else None
        identity = await self._request_context.identity(authorization, token)
        identity.grant.check(KeyScope.CHAT)
        name = client_id_of(identity, bearer(authorization), websocket.scope)
        return HandshakeInfo(identity, caller_of(identity, name, websocket.scope))

    async def serve(self, socket: WebSocketTransport, handshake_info: HandshakeInfo) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=encode,
            tally=self.tally,
        )
        handler = ResponsesSocketHandler(
            creator=self.creator, request_context=self._request_context, tally=self.tally, transport=socket
        )
        async with self._lifecycle.of(connection):
            with self.access.watch(handshake_info.identity, connection):
                await connection.serve(handler, decode)


class ResponseEvents(ServerFrame, frozen=True, kw_only=True, tag="responses"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[schema.StreamEvent, ...]


def encode(frame: Frame) -> bytes:
    """Return the lines of a frame: none, one or several."""
    match frame:
        case ResponseEvents():
            return encode_lines(frame.events)
        case Error():
            why = Problem(400, frame.message, code=frame.code, retry_after_ms=frame.retry_after_ms)
            return encode_lines([_error(why, frame.ref)])
        case _:
            return b""


class ResponsesSocketHandler:
    """Handles one socket's messages."""

    def __init__(
        self,
        *,
        creator: ResponseCreator,
        request_context: RequestContext,
        tally: EndpointCounters,
        transport: Transport,
    ) -> None:
        self._creator = creator
        self._request_context = request_context
        self._tally = tally
        self._transport = transport
        self._streams = ActiveStreams()
        self._unstored = UnstoredResponses()

    def handle(self, connection: Connection, event: ClientEvent) -> PendingWork | None:
        """Decide at once; return work that takes time."""
        try:
            return self._dispatch(connection, event)
        except Refused as refused:
            self._refuse(connection, refused, event.stream_id)
            return None

    def _dispatch(self, connection: Connection, event: ClientEvent) -> PendingWork | None:
        """Handle a message. Raises Refused."""
        match event:
            case InvalidMessage():
                raise event.refused
            case CancelResponse():
                self._streams.stop(event.response_id, event.stream_id)
                return None
            case CreateResponse():
                if event.request.background:
                    why = "A socket's client is there: leave `background` out, or ask over HTTP."
                    raise invalid("background", why, code="unsupported_parameter")
                self._request_context.take(connection.caller)
                stream = self._streams.take(event.stream_id)
                return self._run_in_stream(connection, event, stream)
            case _:
                assert_never(event)

    async def _run_in_stream(
        self, connection: Connection, event: CreateResponse, stream: ActiveStream
    ) -> None:
        try:
            refused = await refusal_of(self._respond_while_connected(connection, event, stream))
        finally:
            self._streams.release(event.stream_id)
        if refused is not None:
            self._unstored.forget(event.request.previous_response_id)
            self._refuse(connection, refused, event.stream_id)

    async def _respond_while_connected(
        self, connection: Connection, event: CreateResponse, stream: ActiveStream
    ) -> None:
        """Respond while the client may ask. Raises Refused."""
        with suppress(Disconnected):
            await self._respond(connection, event, stream)

    async def _respond(self, connection: Connection, event: CreateResponse, stream: ActiveStream) -> None:
        """Write one response. Raises Refused, Disconnected."""
        started = await self._creator.create(
            connection.caller,
            event.request,
            before=self._unstored.get(event.request.previous_response_id),
            stream_id=msgspec.UNSET if event.stream_id is None else event.stream_id,
        )
        try:
            stream.write(started.encoder.response.id, started.stop)
            await self._send_response(connection, started)
        finally:
            started.abandon()
        response = started.encoder.response
        if response.status == "failed":
            self._unstored.forget(event.request.previous_response_id)
        elif not response.store:
            self._unstored.put(response.id, (*started.read, *output_messages(response.output)))

    async def _send_response(self, connection: Connection, started: StartedResponse) -> None:
        """Send a response, as fast as its client reads. Raises Disconnected."""
        answer, encoder = started.answer, started.encoder
        answer.cut_off = lambda: connection.shut(_SLOW_READER)
        connection.push(ResponseEvents(events=tuple(encoder.begin())))
        async for piece in answer:
            if sent := encoder.piece(piece):
                connection.push(ResponseEvents(events=tuple(sent)))
                await self._wait_until_drained(connection)
        last = encoder.end(answer.ended, answer.model, int(time.time()))
        connection.push(ResponseEvents(events=tuple(last)))

    async def _wait_until_drained(self, connection: Connection) -> None:
        """Wait until nothing waits for the client; what comes meanwhile is merged. Raises Disconnected."""
        while connection.waiting_bytes:
            await self._transport.writable()
            await asyncio.sleep(0)

    def _refuse(self, connection: Connection, refused: Refused, stream_id: str | None) -> None:
        self._tally.sent(metric_code(refused))
        connection.push(ResponseEvents(events=(_error(problem_of(refused), stream_id),)))
        if isinstance(refused, RateLimited):
            self._transport.charge()


def _error(problem: Problem, stream_id: str | None) -> schema.ErrorEvent:
    sent = schema.Refused(type_of(problem.status), problem.error_code, str(problem), problem.param)
    return schema.ErrorEvent(
        stream_id=msgspec.UNSET if stream_id is None else stream_id,
        status=problem.status,
        code=sent.code,
        message=sent.message,
        param=sent.param,
        error=sent,
    )


class _ClientMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The root of a client's messages. `stream_id`: the stream that it belongs to."""

    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


class CreateResponse(_ClientMessage, frozen=True, kw_only=True):
    """Asks for a response."""

    request: Creation


class CancelResponse(_ClientMessage, frozen=True, kw_only=True):
    """Stops a response: the named one, or that of the stream."""

    response_id: str | None


class InvalidMessage(_ClientMessage, frozen=True, kw_only=True):
    """A JSON message that is not a valid request."""

    refused: Refused


ClientEvent = CreateResponse | CancelResponse | InvalidMessage


class _EventHeader(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    response_id: str | None = None


_head = msgspec.json.Decoder(_EventHeader)


def decode(message: str | bytes) -> ClientEvent:
    """Return one message. Raises BadFrame if it is none."""
    head = codec.read(_head, message)
    if head.stream_id is not None and not 0 < len(head.stream_id) <= MAX_STREAM_ID:
        raise BadFrame(f"`stream_id` must have 1 to {MAX_STREAM_ID} characters.")
    if head.type in _CANCELS:
        return CancelResponse(response_id=head.response_id, stream_id=head.stream_id)
    if head.type != "response.create" or isinstance(message, bytes):
        return InvalidMessage(refused=_unknown_event(), stream_id=head.stream_id)
    try:
        return CreateResponse(request=parse_response_request(message.encode()), stream_id=head.stream_id)
    except Refused as refused:
        return InvalidMessage(refused=refused, stream_id=head.stream_id)


def _unknown_event() -> Problem:
    why = f"This server takes events of the types response.create and {_CANCELS[0]}."
    return invalid("type", why, code="unsupported_event")


class UnstoredResponses:
    """Responses that are kept only here, while the socket is open, each with all messages up to its end."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, tuple[tuple[Message, ...], int]] = OrderedDict()
        self._bytes = 0

    def get(self, response_id: str | None) -> tuple[Message, ...] | None:
        """Return all messages up to its end; None if it is not here."""
        found = None if response_id is None else self._messages.get(response_id)
        return None if found is None else found[0]

    def put(self, response_id: str, messages: tuple[Message, ...]) -> None:
        """Keep one, as long as there is room."""
        size = len(encode_messages(messages))
        self._messages[response_id] = (messages, size)
        self._bytes += size
        while len(self._messages) > MAX_UNSTORED or self._bytes > self._most_bytes:
            self.forget(next(iter(self._messages)))

    @property
    def _most_bytes(self) -> int:
        return MAX_UNSTORED_BYTES if len(self._messages) > 1 else MAX_NEWEST_BYTES

    def forget(self, response_id: str | None) -> None:
        """Forget a response."""
        if response_id is not None and (found := self._messages.pop(response_id, None)) is not None:
            self._bytes -= found[1]


class ActiveStream:
    """A place for one response at a time. `stop` ends the current one; `is_stopped`: it was stopped before it began."""

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.stop: Callable[[], None] | None = None
        self.is_stopped = False

    def write(self, response_id: str, stop: Callable[[], None]) -> None:
        """Begin a response here."""
        self.response_id, self.stop = response_id, stop
        if self.is_stopped:
            stop()

    def end(self) -> None:
        """End the response here, also one that is about to begin."""
        self.is_stopped = True
        if self.stop is not None:
            self.stop()


class ActiveStreams:
    """The streams in use."""

    def __init__(self) -> None:
        self._streams: dict[str | None, ActiveStream] = {}

    def take(self, stream_id: str | None) -> ActiveStream:
        """Take a stream. Raises Problem if it is in use, Overloaded if too many are."""
        if stream_id in self._streams:
            named = "on this connection" if stream_id is None else f'in the lane "{shorten(stream_id)}"'
            why = f"A response is being written {named}. Send the next request when it has ended, or in another `stream_id`."
            raise invalid("stream_id", why, code="response_in_progress")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(
                f"{MAX_STREAMS} responses are being written on this connection, which is the limit."
            )
        stream = self._streams[stream_id] = ActiveStream()
        return stream

    def release(self, stream_id: str | None) -> None:
        """Free a stream."""
        del self._streams[stream_id]

    def stop(self, response_id: str | None, stream_id: str | None) -> None:
        """End a response: the named one, else that of the stream. Raises Problem if there is none."""
        for name, stream in self._streams.items():
            if stream.response_id == response_id if response_id is not None else name == stream_id:
                stream.end()
                return
        why = "No such response is being written on this connection."
        raise Problem(404, why, code="response_not_found", param="response_id")
