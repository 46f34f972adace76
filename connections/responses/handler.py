"""Handles a WebSocket's messages: responses in their lanes are sent as they are written, and stopped at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, assert_never

import msgspec

from connections.http.json_answers import type_of
from connections.limits.bounds import Tally
from connections.limits.quotas import RateLimited
from connections.line.connection import Connection, Disconnected, Transport
from connections.openai.problems import Problem, counted_as, invalid, problem_of
from connections.openai.reception import Reception
from connections.responses.answers import wire
from connections.responses.answers.resource import said_in
from connections.responses.answers.telling import as_lines
from connections.responses.asks import Asks, Create, Ill, Stop
from connections.responses.creating import Begun, Creator
from connections.responses.lanes import Kept, Lane, Lanes
from connections.wire.errors import Close, CloseCode
from connections.wire.frames import Error, Frame, ServerFrame
from sessions.conversation.guarding import guarded
from sessions.errors import Refused

_TOO_LATE = Close(CloseCode.OVERLOAD, "The reader is too slow; reconnect.")
Slow = Coroutine[Any, Any, None]


class Said(ServerFrame, frozen=True, kw_only=True, tag="responses"):
    """Events of this door, in order with all other frames."""

    events: tuple[wire.StreamEvent, ...]


def encode(frame: Frame) -> bytes:
    """Return the lines of a frame: none, one or several."""
    match frame:
        case Said():
            return as_lines(frame.events)
        case Error():
            why = Problem(400, frame.message, code=frame.code, retry_after_ms=frame.retry_after_ms)
            return as_lines([_error(why, frame.ref)])
        case _:
            return b""


class SocketHandler:
    """Handles one socket's messages."""

    def __init__(self, *, creator: Creator, reception: Reception, tally: Tally, transport: Transport) -> None:
        self._creator = creator
        self._reception = reception
        self._tally = tally
        self._transport = transport
        self._lanes = Lanes()
        self._kept = Kept()

    def handle(self, connection: Connection, ask: Asks) -> Slow | None:
        """Decide at once; return work that takes time."""
        try:
            return self._at_once(connection, ask)
        except Refused as refused:
            self._refuse(connection, refused, ask.stream_id)
            return None

    def _at_once(self, connection: Connection, ask: Asks) -> Slow | None:
        """Handle a message. Raises Refused."""
        match ask:
            case Ill():
                raise ask.refused
            case Stop():
                self._lanes.stop(ask.response_id, ask.stream_id)
                return None
            case Create():
                if ask.request.background:
                    why = "A socket's client is there: leave `background` out, or ask over HTTP."
                    raise invalid("background", why, code="unsupported_parameter")
                self._reception.take(connection.caller)
                lane = self._lanes.take(ask.stream_id)
                return self._in_lane(connection, ask, lane)
            case _:
                assert_never(ask)

    async def _in_lane(self, connection: Connection, ask: Create, lane: Lane) -> None:
        try:
            refused = await guarded(self._while_there(connection, ask, lane))
        finally:
            self._lanes.give_back(ask.stream_id)
        if refused is not None:
            self._kept.forget(ask.request.previous_response_id)
            self._refuse(connection, refused, ask.stream_id)

    async def _while_there(self, connection: Connection, ask: Create, lane: Lane) -> None:
        """Respond while the client may ask. Raises Refused."""
        with suppress(Disconnected):
            await self._respond(connection, ask, lane)

    async def _respond(self, connection: Connection, ask: Create, lane: Lane) -> None:
        """Write one response. Raises Refused, Disconnected."""
        begun = await self._creator.create(
            connection.caller,
            ask.request,
            before=self._kept.get(ask.request.previous_response_id),
            stream_id=msgspec.UNSET if ask.stream_id is None else ask.stream_id,
        )
        try:
            lane.write(begun.telling.response.id, begun.stop)
            await self._tell(connection, begun)
        finally:
            begun.leave()
        response = begun.telling.response
        if response.status == "failed":
            self._kept.forget(ask.request.previous_response_id)
        elif not response.store:
            self._kept.put(response.id, (*begun.read, *said_in(response.output)))

    async def _tell(self, connection: Connection, begun: Begun) -> None:
        """Send a response, as fast as its client reads. Raises Disconnected."""
        answer, telling = begun.answer, begun.telling
        answer.cut_off = lambda: connection.shut(_TOO_LATE)
        connection.push(Said(events=tuple(telling.begin())))
        async for piece in answer:
            if told := telling.piece(piece):
                connection.push(Said(events=tuple(told)))
                await self._until_read(connection)
        last = telling.end(answer.ended, answer.model, int(time.time()))
        connection.push(Said(events=tuple(last)))

    async def _until_read(self, connection: Connection) -> None:
        """Wait until nothing waits for the client; what comes meanwhile is merged. Raises Disconnected."""
        while connection.waiting_bytes:
            await self._transport.writable()
            await asyncio.sleep(0)

    def _refuse(self, connection: Connection, refused: Refused, stream_id: str | None) -> None:
        self._tally.told(counted_as(refused))
        connection.push(Said(events=(_error(problem_of(refused), stream_id),)))
        if isinstance(refused, RateLimited):
            self._transport.charge()


def _error(problem: Problem, stream_id: str | None) -> wire.ErrorEvent:
    told = wire.Refused(type_of(problem.status), problem.word, str(problem), problem.param)
    return wire.ErrorEvent(
        stream_id=msgspec.UNSET if stream_id is None else stream_id,
        status=problem.status,
        code=told.code,
        message=told.message,
        param=told.param,
        error=told,
    )
