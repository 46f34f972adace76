"""uvicorn's HTTP protocol, with an end to its patience: for a request that does not come, and for too many of anything.

uvicorn waits without a limit for the rest of a request, takes any number of connections and any length of a head, and
parses all requests that a peer sends ahead. Here the next one is parsed once the last one is answered.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from typing import Any

import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.server.feed import Feed, Hold
from app.server.resets import reset
from connections.http.exchange import ABORT
from connections.limits.bounds import Bound, Bounds
from connections.limits.loop_turns import LoopTurns
from connections.line.budget import PIPELINED, Bucket

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
"""Of a head; one of 64 KiB may have 20,000, of which each is an object or two."""
MAX_AHEAD_BYTES = 64 * 1024
"""Of requests behind one that is being answered; what is more waits in the kernel."""

WRITE_BUFFER_BYTES = 32 * 1024
"""What waits here for the kernel before the application has to."""

_ANSWER = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b"


def last_answer(status: bytes, why: bytes) -> bytes:
    """Return the answer to a request that is refused before the application sees it."""
    retry = b"Retry-After: 1\r\n" if status.startswith(b"503") else b""
    return _ANSWER % (status, len(why), retry, why)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`request_s`: what a peer has from its first byte, or from connecting, to the end of a request; `max_sockets`: at once."""

    request_s: float
    max_sockets: int


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    feed: Feed

    def __init__(self, *, patience: Patience, bounds: Bounds, turns: LoopTurns, **rest: Any) -> None:
        super().__init__(**rest)
        self._turns = turns
        self._patience = patience
        self._bounds = bounds
        self._ahead = Bucket(PIPELINED)
        self._deadline: TimerHandle | None = None
        self._head_bytes: int | None = 0
        """Of the head that is coming, None behind its end."""
        self._headers = 0
        self._body_left = 0
        self._answered: RequestResponseCycle | None = None
        """The one that is being answered. uvicorn knows the newest one, which may wait behind it."""
        self._next: tuple[RequestResponseCycle, ASGI3Application] | None = None
        """It is answered once its peer has taken the answer before."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request, or says that there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.feed = Feed(
            transport, self._turns, self._parse, copied=lambda: self._body_left, slack=MAX_AHEAD_BYTES
        )
        self.flow = _Flow(transport, self.feed)
        if len(self.connections) > self._patience.max_sockets:
            self._bounds.count(Bound.SOCKETS)
            self._refuse(b"503 Service Unavailable", b"The server has as many connections as it can take.")
        else:
            self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no longer."""
        self._stop_waiting()
        self.feed.end()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._let_go()

    def data_received(self, data: bytes) -> None:
        """Parses it in its turn."""
        if not self.transport.is_closing():
            self.feed.take(data)

    def _parse(self, data: bytes) -> None:
        """Reads on, unless the head is as long as one may be."""
        super().data_received(data)
        if self._waits_for_nothing:
            self._begin_to_wait()  # for the request that empty lines came before: uvicorn's timer is off now
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            is_too_long = self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS
            if is_too_long and not self.transport.is_closing():
                self._bounds.count(Bound.REQUEST_HEAD)
                self._refuse(b"431 Request Header Fields Too Large", b"The request's head is too long.")

    @property
    def _waits_for_nothing(self) -> bool:
        """Whether no time runs for a peer of which nothing is being answered."""
        is_ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        return is_ours and self._deadline is None and not self._is_answering

    def on_message_begin(self) -> None:
        """A request begins, the first one or the next."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"abort": self.abort}}
        self._head_bytes = self._body_left = self._headers = 0
        self._ahead.take(1, self.loop.time())
        if self._deadline is None:
            self._begin_to_wait()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head."""
        super().on_header(name, value)
        self._headers += 1
        if name.lower() == b"content-length":
            self._body_left = int(value)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_left -= len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """The head is there; an upgrade has no more."""
        self._head_bytes = None
        if self.parser.should_upgrade():
            self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is there: what comes behind it waits for its answer."""
        self._stop_waiting()
        super().on_message_complete()
        if self._is_answering:
            self.feed.hold(Hold.ANSWER)

    def on_response_complete(self) -> None:
        """The next request has its turn: at once where it was waited for, else within the budget of those sent ahead."""
        super().on_response_complete()
        if self._is_answering:  # one that was in the same part
            return
        wait_s = self._ahead.wait_s(self.loop.time())
        if self.feed.waits and wait_s:
            self._bounds.count(Bound.PIPELINED)
            self.feed.hold(Hold.BUDGET)
            self.loop.call_later(wait_s, self.feed.release, Hold.BUDGET)
        self.feed.release(Hold.ANSWER)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Begins an answer. While its peer does not take the one before, another would only lie here."""
        self._answered = cycle
        if self.flow.write_paused:
            self._next = cycle, app
        else:
            super()._start_asgi_task(cycle, app)

    def resume_writing(self) -> None:
        """The peer has taken most of what it was sent."""
        super().resume_writing()
        if self._next is not None:
            begun, self._next = self._next, None
            super()._start_asgi_task(*begun)

    def handle_websocket_upgrade(self) -> None:
        """The connection becomes a WebSocket; what was sent ahead of the handshake's answer is dropped, as uvicorn does."""
        if self._is_answering:
            self.abort()
            return
        self.feed.end()
        super().handle_websocket_upgrade()
        self._let_go()

    def _let_go(self) -> None:
        """Drops what has this object, so that all of it is freed at once, and the collector has nothing to find."""
        del self.parser, self.flow, self.scope
        self._answered = self._next = None

    def abort(self) -> None:
        """Ends the connection by a reset."""
        reset(self.transport)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _begin_to_wait(self) -> None:
        self._deadline = self.loop.call_later(self._patience.request_s, self._out_of_patience)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _out_of_patience(self) -> None:
        self._deadline = None
        if not self.feed.is_clear:  # it is there, and waits for us
            self._begin_to_wait()
            return
        self._bounds.count(Bound.REQUEST_TIME)
        if self._is_answering:
            self.transport.abort()  # it is being answered: nothing of ours fits in between
        else:
            self._refuse(b"408 Request Timeout", b"The request did not come in time.")

    def _refuse(self, status: bytes, why: bytes) -> None:
        self._stop_waiting()
        self.transport.write(last_answer(status, why))
        self.transport.close()


class _Flow(FlowControl):
    """uvicorn's reasons to pause reading, among the others."""

    def __init__(self, transport: Transport, feed: Feed) -> None:
        super().__init__(transport)
        self._feed = feed

    def pause_reading(self) -> None:
        """A body waits for the application."""
        self.read_paused = True
        self._feed.hold(Hold.BODY)

    def resume_reading(self) -> None:
        """The application takes it."""
        self.read_paused = False
        self._feed.release(Hold.BODY)
