"""Handles a WebSocket's messages: responses are sent as they are written, and stopped at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, assert_never

import msgspec

from connections.api.errors import Problem, invalid, metric_code, problem_of
from connections.api.request_context import RequestContext
from connections.connection import Connection, Disconnected, Transport
from connections.http.json_responses import type_of
from connections.limits.bound_counters import EndpointCounters
from connections.limits.quotas import RateLimited
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Error, Frame, ServerFrame
from connections.responses.active_streams import ActiveStream, ActiveStreams, UnstoredResponses
from connections.responses.client_events import CancelResponse, ClientEvent, CreateResponse, InvalidMessage
from connections.responses.creator import ResponseCreator, StartedResponse
from connections.responses.output import wire
from connections.responses.output.encoder import encode_lines
from connections.responses.output.response_fields import output_messages
from sessions.conversation.conversation import refusal_of
from sessions.errors import Refused

_SLOW_READER = Close(CloseCode.OVERLOAD, "The reader is too slow; reconnect.")
PendingWork = Coroutine[Any, Any, None]


class ResponseEvents(ServerFrame, frozen=True, kw_only=True, tag="responses"):
    """Events of this endpoint, in order with all other frames."""

    events: tuple[wire.StreamEvent, ...]


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


def _error(problem: Problem, stream_id: str | None) -> wire.ErrorEvent:
    sent = wire.Refused(type_of(problem.status), problem.error_code, str(problem), problem.param)
    return wire.ErrorEvent(
        stream_id=msgspec.UNSET if stream_id is None else stream_id,
        status=problem.status,
        code=sent.code,
        message=sent.message,
        param=sent.param,
        error=sent,
    )
