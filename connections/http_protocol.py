"""uvicorn's HTTP protocol with limits on time and size, and the reader that feeds it.

uvicorn waits forever for the rest of a request, accepts any number of connections and a head of any length, and parses every
request that a peer pipelines. Here a request is parsed once the one before it has been answered.

uvloop reads up to 256 KB at once, several times, before it looks at another socket, and parsers take whatever they get. Here
bytes are parsed in small parts (`ThrottledReader`), so that one peer's megabytes don't delay another's ping. An iteration of the
event loop parses only a few parts, however many peers wait. Meanwhile their transports are not read: the rest waits in the kernel.
"""

from __future__ import annotations

import socket
import struct
from asyncio import TimerHandle, Transport
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from connections.authentication.caller import peer_group
from connections.http import ABORT, WRITE
from connections.limiters import BoundCounters
from connections.loop_scheduler import FairLoopScheduler, LightClients
from connections.middleware import Network
from sessions.limits.bounds import (
    FRAMED,
    MAX_AHEAD_BYTES,
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    PART_BYTES,
    PIPELINED,
    WRITE_BUFFER_BYTES,
    Bound,
)
from sessions.limits.rates import TokenBucket
from sessions.limits.shares import ADDRESS

PARTS_PER_ITERATION = 2
"""Parts parsed in one iteration of the event loop: a millisecond's work if they are full of small frames, or of handshakes."""
MAX_PART_BYTES = 16 * 1024
"""The largest part if the parser only copies it: the rest of a long frame, or of a body."""
_SINGLE = {b"authorization", b"content-length", b"host"}
"""Headers that may occur only once: of two, a proxy and this server might go by different ones."""
_ANSWER = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b"
_NO_LINGER = struct.pack("ii", 1, 0)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`request_s`: seconds from the first byte, or from connecting, to the end of a request; `max_sockets`: sockets at once."""

    request_s: float
    max_sockets: int


class SharedServerState(ServerState):
    """The state that all connections of a server share, with the counters of bounds and the scheduler of the parsers."""

    def __init__(self, bounds: BoundCounters, scheduler: ParseScheduler) -> None:
        super().__init__()
        self.bounds = bounds
        self.scheduler = scheduler
        self.is_draining = False
        """Whether each connection closes after its next answer."""


class BadRequest(Exception):
    """A request that gets the status 400, and ends its connection."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    feed: ThrottledReader
    server_state: SharedServerState

    def __init__(self, *, server_limits: ServerLimits, **rest: Any) -> None:
        super().__init__(**rest)
        self._server_limits = server_limits
        self._scheduler = self.server_state.scheduler
        self._bounds = self.server_state.bounds
        self._ahead = TokenBucket(PIPELINED)
        self._deadline: TimerHandle | None = None
        self._head_bytes: int | None = 0
        """Bytes of the current head; None after its end."""
        self._headers = 0
        self._framing_bytes = 0
        """Bytes after the head, minus `FRAMED` for each byte of the body."""
        self._body_left = 0
        self._is_handshake = False
        self._answered: RequestResponseCycle | None = None
        """The request being answered. uvicorn knows only the newest one, which may wait behind this one."""
        self._next: tuple[RequestResponseCycle, Any] | None = None
        """The next request to answer, until the peer has read the answer before it and is next in line."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, or refuse a socket beyond the limit."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.feed = ThrottledReader(
            transport, self._scheduler, self._parse, copied=lambda: self._body_left, slack=MAX_AHEAD_BYTES
        )
        self.flow = _ReaderFlowControl(transport, self.feed)
        if len(self.connections) > self._server_limits.max_sockets:
            self._bounds.count(Bound.SOCKETS)
            self._refuse(b"503 Service Unavailable", b"The server has as many connections as it can take.")
        else:
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop whatever waits for the peer."""
        self._cancel_deadline()
        self.feed.end()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._break_cycles()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes when this peer is next in line."""
        if not self.transport.is_closing():
            self.feed.take(data)

    def _parse(self, data: bytes) -> None:
        """Parse a part; refuse a head, or the framing of a body, that exceeds its limit."""
        # as in uvicorn's `data_received`, which this replaces
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        try:
            self._framing_bytes += len(data)
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_handshake:
                self.handle_websocket_upgrade()
            else:
                self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            why = (
                error.__context__
                if isinstance(error.__context__, BadRequest)
                else "This is not valid HTTP/1.1."
            )
            self._refuse(b"400 Bad Request", str(why).encode())
            return
        if self._is_idle:
            self._start_deadline()  # empty lines before a request have stopped uvicorn's timer
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            is_too_long = self._head_bytes > MAX_HEAD_BYTES or self._headers > MAX_HEADERS
        else:
            is_too_long = self._framing_bytes > MAX_FRAMING_BYTES
        if is_too_long and not self.transport.is_closing():
            self._bounds.count(Bound.REQUEST_HEAD)
            self._refuse(
                b"431 Request Header Fields Too Large", b"The request's head or trailer is too long."
            )

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Serve a request without the upgrade that it offers: RFC 9110, section 7.8.

        The parser takes whatever follows such a head for another protocol, even a body of a declared length. If it read on, it
        would take the body for the next request. So a new parser reads the head without `Upgrade`, and then the body.
        """
        head = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = _parser(self)
        self._parse(b"\r\n".join((*head, b"", b"")))
        if rest and not self.transport.is_closing():
            self._parse(rest)

    @property
    def _is_idle(self) -> bool:
        """Whether this is an open HTTP connection that has no deadline and answers no request."""
        is_ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        return is_ours and self._deadline is None and not self._is_answering

    def on_message_begin(self) -> None:
        """Begin a request, the first one or the next."""
        super().on_message_begin()
        request = object()  # not the scope, which would refer to itself
        self.scope["extensions"] = {
            ABORT: {"abort": self.abort},
            WRITE: {"write": partial(self._write_now, request), "request": request},
        }
        self._head_bytes = self._body_left = self._headers = self._framing_bytes = 0
        self._ahead.take(1, self.loop.time())
        if self._deadline is None:
            self._start_deadline()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line. Lines of a trailer are dropped: they must not count as headers (RFC 9110, section 6.5.1)."""
        if self._head_bytes is None:
            return
        super().on_header(name, value)
        self._headers += 1
        if name.lower() == b"content-length":
            self._body_left = int(value)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body_left -= len(body)
        self._framing_bytes = max(0, self._framing_bytes - FRAMED * len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """End the head. Raises BadRequest."""
        self._check_head()
        self._is_handshake = self.parser.should_upgrade() and self._is_websocket_request
        if self._is_handshake:
            self._cancel_deadline()
        if self._is_handshake or not self.parser.should_upgrade():
            self._head_bytes, self._framing_bytes = None, 0
            super().on_headers_complete()
            if self.expect_100_continue and not self._is_handshake:
                self.cycle.keep_alive = False  # after an early answer, nobody knows whether the body follows

    def _check_head(self) -> None:
        names = Counter(name for name, _ in self.headers)
        if twice := [name for name in _SINGLE if names[name] > 1]:
            raise BadRequest(f"A request may have only one {twice[0].decode().title()} header.")
        if names[b"host"] == 0 and self.parser.get_http_version() != "1.0":
            raise BadRequest("An HTTP/1.1 request needs a Host header.")
        if not self.url.startswith((b"/", b"*")) and not self._matches_host_header:
            raise BadRequest("The request's target and its Host header name different hosts.")
        if self.parser.get_method() == b"CONNECT":
            raise BadRequest("This server is not a proxy.")

    @property
    def _matches_host_header(self) -> bool:
        """Whether an absolute target (RFC 9112, section 3.2.2) names the host of the `Host` header, which the middleware checks."""
        host = next((value for name, value in self.headers if name == b"host"), b"")
        try:
            return urlsplit(self.url).netloc.lower() == host.strip().lower()
        except ValueError:
            return False

    @property
    def _is_websocket_request(self) -> bool:
        """Whether this is the head of a handshake: RFC 6455, section 4.1. No other upgrade is granted."""
        upgrades = [value.lower() for name, value in self.headers if name == b"upgrade"]
        return upgrades == [b"websocket"] and self.parser.get_method() == b"GET"

    def _should_upgrade(self) -> bool:
        # private: uvicorn calls it to learn whether a request becomes a WebSocket; `on_headers_complete` has decided that
        return self._is_handshake

    def on_message_complete(self) -> None:
        """End the request: later ones wait for its answer."""
        if self._head_bytes is not None:  # the upgrade is ignored: the request begins again without it
            return
        self._cancel_deadline()
        super().on_message_complete()
        if self._is_answering:
            self.feed.hold(PauseReason.ANSWER)

    def on_response_complete(self) -> None:
        """Allow the next request: at once if it has yet to arrive, else within the budget of pipelined requests."""
        super().on_response_complete()
        if self._is_answering and not self.cycle.more_body:  # the next request arrived whole in the same part
            return
        wait_s = self._ahead.wait_s(self.loop.time())
        if self.feed.waits and wait_s:
            self._bounds.count(Bound.PIPELINED)
            self.feed.hold(PauseReason.BUDGET)
            self.loop.call_later(wait_s, self.feed.release, PauseReason.BUDGET)
        self.feed.release(PauseReason.ANSWER)

    # private: uvicorn has no other place where an answer begins, for the first request and for those that wait behind it
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin an answer: to a pipelined request when its peer is next in line, and never while the last answer is unread."""
        self._answered = cycle
        if self.server_state.is_draining:
            cycle.keep_alive = False
        is_ahead = not cycle.more_body
        if not (is_ahead or self.flow.write_paused):
            super()._start_asgi_task(cycle, app)
            return
        self._next = cycle, app
        if not self.flow.write_paused:
            self.feed.queue(self._begin_next)

    def resume_writing(self) -> None:
        """Resume, since the peer has read most of what was sent."""
        super().resume_writing()
        if self._next is not None:
            self.feed.queue(self._begin_next)

    def _begin_next(self) -> None:
        # The peer may have left, stopped reading or been refused since this was queued.
        if self._next is None or self.flow.write_paused or self.transport.is_closing():
            return
        begun, self._next = self._next, None
        super()._start_asgi_task(*begun)

    def handle_websocket_upgrade(self) -> None:
        """Become a WebSocket. Bytes that arrive before the handshake is answered are dropped, as in uvicorn."""
        if self._is_answering:
            self.abort()
            return
        self.feed.end()
        super().handle_websocket_upgrade()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break the reference cycles, so that everything is freed at once, without the garbage collector."""
        del self.parser, self.flow, self.scope
        self._answered = self._next = None

    def drain(self) -> None:
        """Close the connection after its last answer, or at once if it is idle.

        A connection that has had no request yet stays open: its first one may be on its way.
        """
        if self._is_answering:
            self.cycle.keep_alive = False
        elif self.cycle is not None and self._deadline is None and self.feed.is_clear:
            self.transport.close()

    def abort(self) -> None:
        """End the connection with a reset."""
        reset(self.transport)

    def _write_now(self, request: object, part: bytes) -> bool:
        """Send a part of the answer to a request, as uvicorn would; return False if it has to wait."""
        cycle = self._answered
        if cycle is None or not cycle.chunked_encoding:
            return False
        if cycle.scope["extensions"][WRITE]["request"] is not request:
            return False
        if cycle.response_complete or cycle.disconnected or self.flow.write_paused:
            return False
        self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._server_limits.request_s, self._request_timed_out)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _request_timed_out(self) -> None:
        self._deadline = None
        if not (self.feed.is_clear or self._is_answered):  # what has arrived of the request waits for us
            self._start_deadline()
            return
        self._bounds.count(Bound.REQUEST_TIME)
        self._refuse(b"408 Request Timeout", b"The request did not arrive in time.")

    @property
    def _is_answered(self) -> bool:
        """Whether every request begun so far has been answered, even if the last one's body has not ended."""
        return self._head_bytes is None and not self._is_answering

    def _refuse(self, status: bytes, why: bytes) -> None:
        """End the connection with an error. A request that has been answered, even in part, gets no second answer."""
        self._cancel_deadline()
        self.feed.end()
        if self._is_answering:
            self.transport.abort()
            return
        if not self._is_answered:
            self.transport.write(error_bytes(status, why))
        self.transport.close()


def _parser(protocol: HttpProtocol) -> httptools.HttpRequestParser:
    """Return a parser like uvicorn's: it accepts bytes after a request with `Connection: close`, which get no answer."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _ReaderFlowControl(FlowControl):
    """Turns uvicorn's pauses of reading into holds of the reader, for `PauseReason.BODY`."""

    def __init__(self, transport: Transport, feed: ThrottledReader) -> None:
        super().__init__(transport)
        self._feed = feed

    def pause_reading(self) -> None:
        """Pause: a body waits for the application."""
        self.read_paused = True
        self._feed.hold(PauseReason.BODY)

    def resume_reading(self) -> None:
        """Resume: the application reads the body."""
        self.read_paused = False
        self._feed.release(PauseReason.BODY)


class PauseReason(Enum):
    """Why a peer's bytes are not parsed now."""

    HANDSHAKE = auto()
    MESSAGE = auto()
    """The application has not received the last message, or not processed a large one."""
    UNREAD = auto()
    """The peer does not read its answers."""
    BUDGET = auto()
    BODY = auto()
    ANSWER = auto()
    """The last request is not answered yet. Reading continues, to notice when the peer leaves."""


_READS_ON = {PauseReason.ANSWER}


def _nothing() -> int:
    return 0


class ThrottledReader:
    """Feeds a peer's bytes to its parser, in parts.

    `copied`: how many of the next bytes the parser will only copy; `slack`: how many bytes may wait before reading pauses.
    """

    __slots__ = (
        "_at",
        "_copied",
        "_group",
        "_holds",
        "_is_over",
        "_is_paused",
        "_is_scheduled",
        "_parse",
        "_pending",
        "_scheduler",
        "_slack",
        "_transport",
    )

    def __init__(
        self,
        transport: Transport,
        scheduler: ParseScheduler,
        parse: Callable[[bytes], None],
        *,
        copied: Callable[[], int] = _nothing,
        slack: int = 0,
    ) -> None:
        self._transport = transport
        self._scheduler = scheduler
        self._group = scheduler.group_of(transport)
        self._parse = parse
        self._copied = copied
        self._slack = slack
        self._pending = b""
        self._at = 0
        """How many of the pending bytes were parsed."""
        self._holds: set[PauseReason] = set()
        self._is_paused = self._is_scheduled = self._is_over = False

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits, and new bytes would be parsed at once."""
        return not (self._holds or self.waits)

    @property
    def waits(self) -> bool:
        """Whether bytes wait."""
        return self._at < len(self._pending)

    def holds(self, reason: PauseReason) -> bool:
        """Return whether parsing is paused for this reason."""
        return reason in self._holds

    def take(self, data: bytes) -> None:
        """Parse the bytes at once if they are few and this iteration of the event loop has room; else queue them in parts."""
        if len(data) <= PART_BYTES and self.is_clear and self._scheduler.take_nowait(self._group):
            self._parse(data)
            return
        self._pending, self._at = self._pending[self._at :] + data if self.waits else data, 0
        self._update_reading()

    def hold(self, reason: PauseReason) -> None:
        """Parse nothing until `release`."""
        self._holds.add(reason)
        self._update_reading()

    def release(self, *reasons: PauseReason) -> None:
        """Resume parsing in the loop's next iteration, unless there is another reason to wait."""
        self._holds.difference_update(reasons)
        self._update_reading()

    def enforce(self) -> None:
        """Pause reading again if uvicorn resumed it."""
        self._is_paused = False
        self._update_reading()

    def queue(self, callback: Callable[[], None]) -> None:
        """Call back when this peer is next in line, as if for one more part."""
        self._scheduler.queue(self._group, callback)

    def end(self) -> None:
        """Drop the waiting bytes and the parser. Reading continues for the transport's next owner."""
        self._pending, self._at = b"", 0
        self._holds.clear()
        self._update_reading()
        self._is_over = True
        # parser and reader refer to each other: only the garbage collector would free them
        self._parse, self._copied = _discard, _nothing

    def _update_reading(self) -> None:
        if self._is_over or self._transport.is_closing():
            return
        pause = len(self._pending) - self._at > self._slack or not self._holds <= _READS_ON
        if pause and not self._is_paused:
            self._transport.pause_reading()
        elif self._is_paused and not pause:
            self._transport.resume_reading()
        self._is_paused = pause
        if self.waits and not self._holds and not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.queue(self._group, self._feed)

    def _feed(self) -> None:
        self._is_scheduled = False
        if not self._holds and not self._transport.is_closing():
            begin, self._at = self._at, self._at + min(max(PART_BYTES, self._copied()), MAX_PART_BYTES)
            part = self._pending[begin : self._at]
            if not self.waits:
                self._pending, self._at = b"", 0
            self._parse(part)
        self._update_reading()


def _discard(part: bytes) -> None:
    """The parser of a closed connection."""


class ParseScheduler(FairLoopScheduler):
    """Schedules the parsing of all peers' bytes. `proxies`: networks of trusted proxies."""

    def __init__(self, light_clients: LightClients | None = None, *, proxies: Iterable[Network] = ()) -> None:
        super().__init__(PARTS_PER_ITERATION, light_clients)
        self._proxies = tuple(proxies)

    def group_of(self, transport: Transport) -> str:
        """Return the key by which a peer is scheduled: its address, or its subscriber's network.

        Each connection of a proxy has a key of its own: the client is not known yet, and may be a light one.
        """
        peer = transport.get_extra_info("peername")
        site = peer_group(str(peer[0]), self._proxies) if isinstance(peer, tuple) else ""
        return f"{ADDRESS}{site}" if site else str(id(transport))


def error_bytes(status: bytes, why: bytes) -> bytes:
    """Return the answer to a request that the application never sees."""
    retry = b"Retry-After: 1\r\n" if status.startswith(b"503") else b""
    return _ANSWER % (status, len(why), retry, why)


def reset(transport: Transport) -> None:
    """End a connection with a reset. After a close the kernel would keep unread bytes for minutes."""
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None:
        with suppress(OSError, ValueError):  # it is closed already: uvloop's socket then has no descriptor
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
