"""uvicorn's HTTP protocol with limits on time and size, and the reader that feeds it.

uvicorn waits without a limit for the rest of a request, takes any number of connections and any length of a head, and
parses all requests that a peer sends ahead. Here the next one is parsed once the last one is answered.

uvloop reads up to 256 KB at once, several times, before it looks at another socket, and parsers take all that they get. Here
bytes are parsed in small parts (`ThrottledReader`), so that one peer's megabytes delay nobody else's ping. A turn of the event
loop parses few parts, however many peers wait. Meanwhile the transport is not read: the rest waits in the kernel.
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
"""Parts parsed in one turn of the event loop: with many small frames, or handshakes, a millisecond's work."""
MAX_PART_BYTES = 16 * 1024
"""Bytes at a time that are only copied: the rest of a long frame, or of a body."""
_SINGLE = {b"authorization", b"content-length", b"host"}
"""Headers that a request has once: a proxy and this server might each believe another one of two."""
_ANSWER = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b"
_NO_LINGER = struct.pack("ii", 1, 0)


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`request_s`: seconds from the first byte, or from connecting, to the end of a request; `max_sockets`: sockets at once."""

    request_s: float
    max_sockets: int


class SharedServerState(ServerState):
    """The state that all connections of a server share, with the counters of bounds and the turns of the parsers."""

    def __init__(self, bounds: BoundCounters, turns: ParseScheduler) -> None:
        super().__init__()
        self.bounds = bounds
        self.turns = turns
        self.is_draining = False
        """Whether each connection ends with its next answer."""


class BadRequest(Exception):
    """A request that is answered 400, and ends its connection."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket."""

    feed: ThrottledReader
    server_state: SharedServerState

    def __init__(
        self, *, server_limits: ServerLimits, bounds: BoundCounters, turns: ParseScheduler, **rest: Any
    ) -> None:
        super().__init__(**rest)
        self._turns = turns
        self._server_limits = server_limits
        self._bounds = bounds
        self._ahead = TokenBucket(PIPELINED)
        self._deadline: TimerHandle | None = None
        self._head_bytes: int | None = 0
        """Header lines of the current head; None after its end."""
        self._headers = 0
        self._framing_bytes = 0
        """Bytes since the head, less `FRAMED` for each byte of the body."""
        self._body_left = 0
        self._is_handshake = False
        self._answered: RequestResponseCycle | None = None
        """The request being answered. uvicorn knows only the newest, which may wait behind it."""
        self._next: tuple[RequestResponseCycle, Any] | None = None
        """Set until the peer has read the answer before, and has its turn."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, or refuse one socket too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.feed = ThrottledReader(
            transport, self._turns, self._parse, copied=lambda: self._body_left, slack=MAX_AHEAD_BYTES
        )
        self.flow = _ReaderFlowControl(transport, self.feed)
        if len(self.connections) > self._server_limits.max_sockets:
            self._bounds.count(Bound.SOCKETS)
            self._refuse(b"503 Service Unavailable", b"The server has as many connections as it can take.")
        else:
            self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        self.feed.end()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._break_cycles()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes in their turn."""
        if not self.transport.is_closing():
            self.feed.take(data)

    def _parse(self, data: bytes) -> None:
        """Parse a part, within the bounds of a head and of a body's framing."""
        # as uvicorn's `data_received` begins, which this replaces
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
        if self._waits_for_nothing:
            self._begin_to_wait()  # empty lines before a request have stopped uvicorn's timer
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

        The parser takes what follows such a head for another protocol, whatever length the body has. Read on by the same parser,
        the body would be the next request. So a new parser gets the head without `Upgrade`, and then frames the body.
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
    def _waits_for_nothing(self) -> bool:
        """Whether the peer has no timer and no request being answered."""
        is_ours = not self.transport.is_closing() and self.transport.get_protocol() is self
        return is_ours and self._deadline is None and not self._is_answering

    def on_message_begin(self) -> None:
        """Begin a request, the first one or the next."""
        super().on_message_begin()
        request = object()  # not the scope, which would hold itself
        self.scope["extensions"] = {
            ABORT: {"abort": self.abort},
            WRITE: {"write": partial(self._write_now, request), "request": request},
        }
        self._head_bytes = self._body_left = self._headers = self._framing_bytes = 0
        self._ahead.take(1, self.loop.time())
        if self._deadline is None:
            self._begin_to_wait()

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
            self._stop_waiting()
        if self._is_handshake or not self.parser.should_upgrade():
            self._head_bytes, self._framing_bytes = None, 0
            super().on_headers_complete()
            if self.expect_100_continue and not self._is_handshake:
                self.cycle.keep_alive = False  # nobody knows whether the body follows an early answer

    def _check_head(self) -> None:
        names = Counter(name for name, _ in self.headers)
        if twice := [name for name in _SINGLE if names[name] > 1]:
            raise BadRequest(f"A request has one {twice[0].decode().title()} header at most.")
        if names[b"host"] == 0 and self.parser.get_http_version() != "1.0":
            raise BadRequest("A request of HTTP/1.1 has a Host header.")
        if not self.url.startswith((b"/", b"*")) and not self._names_its_host:
            raise BadRequest("The request's target names another host than its Host header.")
        if self.parser.get_method() == b"CONNECT":
            raise BadRequest("This server is not a proxy.")

    @property
    def _names_its_host(self) -> bool:
        """Whether a target that is a whole URL (RFC 9112, section 3.2.2) has the host of the `Host` header, which the gate reads."""
        host = next((value for name, value in self.headers if name == b"host"), b"")
        try:
            return urlsplit(self.url).netloc.lower() == host.strip().lower()
        except ValueError:
            return False

    @property
    def _is_websocket_request(self) -> bool:
        """Whether this is the head of a handshake: RFC 6455, section 4.1. Nothing else that offers an upgrade gets one."""
        upgrades = [value.lower() for name, value in self.headers if name == b"upgrade"]
        return upgrades == [b"websocket"] and self.parser.get_method() == b"GET"

    def _should_upgrade(self) -> bool:
        # private: by it uvicorn decides whether a request becomes a WebSocket; here its head has decided that
        return self._is_handshake

    def on_message_complete(self) -> None:
        """End the request: later ones wait for its answer."""
        if self._head_bytes is not None:  # an upgrade that is ignored: its request begins again, without it
            return
        self._stop_waiting()
        super().on_message_complete()
        if self._is_answering:
            self.feed.hold(PauseReason.ANSWER)

    def on_response_complete(self) -> None:
        """Let the next request have its turn: at once if the server waited for it, else within the budget of pipelined ones."""
        super().on_response_complete()
        if self._is_answering and not self.cycle.more_body:  # the next one came whole in the same part
            return
        wait_s = self._ahead.wait_s(self.loop.time())
        if self.feed.waits and wait_s:
            self._bounds.count(Bound.PIPELINED)
            self.feed.hold(PauseReason.BUDGET)
            self.loop.call_later(wait_s, self.feed.release, PauseReason.BUDGET)
        self.feed.release(PauseReason.ANSWER)

    # private: uvicorn has no other place where an answer begins, for the first request and for those that wait behind it
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin an answer; to a request that came ahead, in its peer's turn. It waits while the peer does not read the one before."""
        self._answered = cycle
        if self.server_state.is_draining:
            cycle.keep_alive = False
        is_ahead = not cycle.more_body
        if not (is_ahead or self.flow.write_paused):
            super()._start_asgi_task(cycle, app)
            return
        self._next = cycle, app
        if not self.flow.write_paused:
            self.feed.in_turn(self._begin_next)

    def resume_writing(self) -> None:
        """Resume: the peer has read most of what was sent."""
        super().resume_writing()
        if self._next is not None:
            self.feed.in_turn(self._begin_next)

    def _begin_next(self) -> None:
        # Its peer may have left, or stopped reading, or been refused since.
        if self._next is None or self.flow.write_paused or self.transport.is_closing():
            return
        begun, self._next = self._next, None
        super()._start_asgi_task(*begun)

    def handle_websocket_upgrade(self) -> None:
        """Become a WebSocket. Bytes sent before the handshake's answer are dropped, as uvicorn does."""
        if self._is_answering:
            self.abort()
            return
        self.feed.end()
        super().handle_websocket_upgrade()
        self._break_cycles()

    def _break_cycles(self) -> None:
        """Break the reference cycles, so that all is freed at once, without the collector."""
        del self.parser, self.flow, self.scope
        self._answered = self._next = None

    def drain(self) -> None:
        """End the connection with its last answer, or at once if it is idle.

        One without any request so far stays: its first one may be on its way.
        """
        if self._is_answering:
            self.cycle.keep_alive = False
        elif self.cycle is not None and self._deadline is None and self.feed.is_clear:
            self.transport.close()

    def abort(self) -> None:
        """End the connection by a reset."""
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

    def _begin_to_wait(self) -> None:
        self._deadline = self.loop.call_later(self._server_limits.request_s, self._request_timed_out)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _request_timed_out(self) -> None:
        self._deadline = None
        if not (self.feed.is_clear or self._is_answered):  # what has come of the request waits for us
            self._begin_to_wait()
            return
        self._bounds.count(Bound.REQUEST_TIME)
        self._refuse(b"408 Request Timeout", b"The request did not come in time.")

    @property
    def _is_answered(self) -> bool:
        """Whether each request that has begun has its answer already, though the last one's body may not have ended."""
        return self._head_bytes is None and not self._is_answering

    def _refuse(self, status: bytes, why: bytes) -> None:
        """End the connection: a request gets one answer, so one that has its answer, or a part of it, gets no other."""
        self._stop_waiting()
        self.feed.end()
        if self._is_answering:
            self.transport.abort()
            return
        if not self._is_answered:
            self.transport.write(error_bytes(status, why))
        self.transport.close()


def _parser(protocol: HttpProtocol) -> httptools.HttpRequestParser:
    """Return a parser that reads what follows a request with `Connection: close`, as uvicorn's does; it is not answered."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class _ReaderFlowControl(FlowControl):
    """Joins uvicorn's reasons to pause reading with ours."""

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
    """The application has not taken the last message."""
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
    """The bytes of one peer that wait for the parser.

    `copied`: how many of the next bytes the parser will only copy; `slack`: how many may wait while the transport is read.
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
        "_slack",
        "_transport",
        "_turns",
    )

    def __init__(
        self,
        transport: Transport,
        turns: ParseScheduler,
        parse: Callable[[bytes], None],
        *,
        copied: Callable[[], int] = _nothing,
        slack: int = 0,
    ) -> None:
        self._transport = transport
        self._turns = turns
        self._group = turns.group_of(transport)
        self._parse = parse
        self._copied = copied
        self._slack = slack
        self._pending = b""
        self._at = 0
        """The number of parsed bytes."""
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

    def holds(self, hold: PauseReason) -> bool:
        """Return whether parsing waits for this reason."""
        return hold in self._holds

    def take(self, data: bytes) -> None:
        """Parse a few bytes at once if the turn has room, and many in parts."""
        if len(data) <= PART_BYTES and self.is_clear and self._turns.take_nowait(self._group):
            self._parse(data)
            return
        self._pending, self._at = self._pending[self._at :] + data if self.waits else data, 0
        self._update_reading()

    def hold(self, hold: PauseReason) -> None:
        """Parse nothing until `release`."""
        self._holds.add(hold)
        self._update_reading()

    def release(self, *holds: PauseReason) -> None:
        """Parse on from the loop's next turn, unless there is another reason to wait."""
        self._holds.difference_update(holds)
        self._update_reading()

    def enforce(self) -> None:
        """Pause reading again if somebody else resumed it."""
        self._is_paused = False
        self._update_reading()

    def in_turn(self, callback: Callable[[], None]) -> None:
        """Call back when this peer has its turn, as if it were one more part."""
        self._turns.queue(self._group, callback)

    def end(self) -> None:
        """Drop the waiting bytes and the parser. Reading continues for the transport's next owner."""
        self._pending, self._at = b"", 0
        self._holds.clear()
        self._update_reading()
        self._is_over = True
        # parser and feed hold each other: only the collector would free them
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
            self._turns.queue(self._group, self._feed)

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
    """The turns in which the bytes of all peers are parsed. `proxies`: networks of trusted ones."""

    def __init__(self, light_clients: LightClients | None = None, *, proxies: Iterable[Network] = ()) -> None:
        super().__init__(PARTS_PER_ITERATION, light_clients)
        self._proxies = tuple(proxies)

    def group_of(self, transport: Transport) -> str:
        """Return the key by which peers take turns: the address, or the network that one subscriber has.

        Connections of a proxy have a key each. Whose they are is not known yet, and one of them may be a guest's.
        """
        peer = transport.get_extra_info("peername")
        site = peer_group(str(peer[0]), self._proxies) if isinstance(peer, tuple) else ""
        return f"{ADDRESS}{site}" if site else str(id(transport))


def error_bytes(status: bytes, why: bytes) -> bytes:
    """Return the answer to a request that the application never sees."""
    retry = b"Retry-After: 1\r\n" if status.startswith(b"503") else b""
    return _ANSWER % (status, len(why), retry, why)


def reset(transport: Transport) -> None:
    """End a connection by a reset. Without it the kernel would keep unread bytes for minutes."""
    opened: socket.socket | None = transport.get_extra_info("socket")
    if opened is not None:
        with suppress(OSError, ValueError):  # it is closed already; of uvloop's then it has no descriptor
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
