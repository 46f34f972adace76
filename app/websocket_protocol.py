"""uvicorn's WebSocket protocol with bounds both ways: on what a peer sends, and on what it does not read.

uvicorn parses all that comes, answers pings that nobody reads, and waits without limit for a peer that stopped reading: neither
its ping timeout nor a close gets past unsent bytes. Here bytes are parsed in parts (`app/http_protocol.py`) within a
budget (`LimitedProtocol`), and a peer that does not read its answers is not read. If the peer reads, text is written past ASGI's
queues: sooner, and for half the work.
"""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable, Generator, Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import HeaderLineTooLong, ProtocolError, RequestLineTooLong, TooManyHeaders
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS, Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from app.http_protocol import PauseReason, SharedServerState, ThrottledReader, error_bytes, reset
from connections.websocket_endpoint import PEER, LargeMessageLease
from sessions.limits.bounds import (
    LARGE_MESSAGE_BYTES,
    LARGE_MESSAGE_S,
    MAX_FRAGMENTS,
    MAX_HELLO_FRAMES,
    WRITE_BUFFER_BYTES,
    Bound,
)
from sessions.limits.rates import FrameBudget, FrameKind

_TOO_LARGE = "A message has at most {} bytes: upload a larger image by POST /v1/attachments, and send its id."
"""A close frame has room for a hundred characters (RFC 6455, section 5.5)."""
_TOO_MANY_LARGE = "Too many large messages at once: upload the image by POST /v1/attachments, or retry later."
_OF_MESSAGES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)

_PONG = b"\x8a"


class LimitedProtocol(ServerProtocol):
    """The protocol of one socket, around uvicorn's `bare`. `in_debt`: the budget exceeded last; `violated`: the bound that closed it."""

    def __init__(self, bare: ServerProtocol, *, max_size: int, clock: Callable[[], float]) -> None:
        super().__init__(extensions=bare.available_extensions, max_size=max_size, logger=bare.logger)
        self.budget = FrameBudget()
        self.in_debt: Bound | None = None
        self.violated: Bound | None = None
        self.peer_reads = True
        self.pending_pong = b""
        """The pong for the newest ping of a peer that did not read; RFC 6455, section 5.5.3, asks for no more."""
        self._clock = clock
        self._kind = FrameKind.TEXT
        self._fragments = 0
        self._frames_before: int | None = 0
        """Those before the first whole message; None: that has come."""
        self._wanted = 0
        self.large_lease: LargeMessageLease | None = None
        self._read_exact = self.reader.read_exact
        self.reader.read_exact = self._note  # type: ignore[method-assign, assignment]

    def missing_bytes(self) -> int:
        """Return how many bytes the current frame still lacks, or its head."""
        return self._wanted - len(self.reader.buffer)

    def end(self) -> None:
        """Stop parsing, and break the reference cycle with the parser: only the collector would free it."""
        self.parser.close()
        if self.large_lease is not None:
            self.large_lease.end()
        del self.reader.read_exact, self._read_exact

    def _note(self, length: int) -> Generator[None, None, bytearray]:
        self._wanted = length
        reading = self._read_exact(length)
        return reading if self.large_lease is None else self._watched(reading, length, self.large_lease)

    def _watched(
        self, reading: Generator[None, None, bytearray], length: int, large_lease: LargeMessageLease
    ) -> Generator[None, None, bytearray]:
        """Read on; take a place once more of the message has come than others have. Raises ProtocolError."""
        before = self.current_size or 0
        while True:
            if not large_lease.admit(before + min(length, len(self.reader.buffer))):
                self.fail(CloseCode.TRY_AGAIN_LATER, _TOO_MANY_LARGE)
                raise ProtocolError(_TOO_MANY_LARGE)
            try:
                next(reading)
            except StopIteration as end:
                read: bytearray = end.value
                return read
            yield

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """End the connection. The reason for too large a message says how to send large ones: most are images."""
        if code == CloseCode.MESSAGE_TOO_BIG:
            reason = _TOO_LARGE.format(self.max_message_size)
        super().fail(code, reason)

    def recv_frame(self, frame: Frame) -> None:
        """Accept a frame within the bounds. Raises ProtocolError."""
        self._count(frame)
        if frame.opcode is Opcode.PING:
            self.pending_pong = b""  # only the newest counts
            if not self.peer_reads:
                self.pending_pong = _PONG + len(frame.data).to_bytes() + bytes(frame.data)
                return
        size = (self.current_size or 0) + len(frame.data)
        super().recv_frame(frame)
        if self.large_lease is not None and frame.fin and frame.opcode in _OF_MESSAGES:
            self.large_lease.message_ended(size)

    def _count(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CLOSE:
            return
        kind = FrameKind.CONTROL if opcode is Opcode.PING or opcode is Opcode.PONG else self._kind_of(frame)
        if self._frames_before is not None:
            self._frames_before = self._count_before_message(kind, frame, self._frames_before + 1)
        exceeded = self.budget.take(kind, len(frame.data), self._clock())
        if exceeded is not None:
            self.in_debt = exceeded

    def _kind_of(self, frame: Frame) -> FrameKind:
        if frame.opcode is Opcode.CONT:
            self._fragments += 1
            if self._fragments > MAX_FRAGMENTS:
                self._break(Bound.FRAGMENTS, f"A message has at most {MAX_FRAGMENTS} fragments.")
        else:
            self._fragments = 1
            self._kind = FrameKind.TEXT if frame.opcode is Opcode.TEXT else FrameKind.BINARY
        return self._kind

    def _count_before_message(self, kind: FrameKind, frame: Frame, number: int) -> int | None:
        if kind is not FrameKind.CONTROL and frame.fin:
            return None
        if number > MAX_HELLO_FRAMES:
            self._break(Bound.HELLO_FRAMES, f"At most {MAX_HELLO_FRAMES} frames may come before hello.")
        return number

    def _break(self, bound: Bound, why: str) -> None:
        self.violated = bound
        self.fail(CloseCode.POLICY_VIOLATION, why)
        raise ProtocolError(why)


PIECE_BYTES = 16 * 1024
"""Bytes of a large message that go to the transport at once: each piece is freed once the kernel has it."""
_OVERSIZED = (TooManyHeaders, HeaderLineTooLong, RequestLineTooLong)
_HANDSHAKE_TOO_LARGE = b"A handshake has at most %d headers, and a line of it at most %d bytes." % (
    MAX_NUM_HEADERS,
    MAX_LINE_LENGTH,
)


def text_message(text: bytes, *, head: int = 0x81) -> bytes:
    """Write a server's message as one frame, text or with another `head` binary: RFC 6455, section 5.2, without extension or mask.

    `websockets` makes the same bytes at ten times the cost; there is one of these for every delta and reader.
    """
    length = len(text)
    if length < 126:  # noqa: PLR2004 - the lengths of the specification
        return head.to_bytes() + length.to_bytes() + text
    if length < 1 << 16:
        return head.to_bytes() + b"\x7e" + length.to_bytes(2, "big") + text
    return head.to_bytes() + b"\x7f" + length.to_bytes(8, "big") + text


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One socket."""

    conn: LimitedProtocol
    feed: ThrottledReader

    def __init__(self, config: Config, server_state: SharedServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = LimitedProtocol(self.conn, max_size=config.ws_max_size, clock=self.loop.time)
        self.read_paused = True  # as far as uvicorn knows: `feed` alone pauses and resumes reading
        self._bounds = server_state.bounds
        self._turns = server_state.turns
        self._large_in_time: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound what waits for the kernel. Nothing is parsed before the handshake is done."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.feed = ThrottledReader(self.transport, self._turns, self._parse, copied=self.conn.missing_bytes)
        self.feed.hold(PauseReason.HANDSHAKE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count how the connection ended, if the server ended it."""
        self.feed.end()
        self._stop_timing_large()
        if self.conn.close_sent is not None and not self.conn.close_rcvd_then_sent:
            self._bounds.closed(self.conn.close_sent.code)
        super().connection_lost(exc)
        self.conn.end()

    def data_received(self, data: bytes) -> None:
        """Parse it in its turn."""
        if self.handshake_initiated:
            self.feed.take(data)
        else:  # the whole head of the handshake
            super().data_received(data)
            if not self.handshake_initiated:
                self._refuse_head()

    def _refuse_head(self) -> None:
        """Answer a handshake that `websockets` can't read: uvicorn would leave it open, and fail when the server ends."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        status, why = b"400 Bad Request", b"This is not a WebSocket handshake."
        if isinstance(self.conn.handshake_exc, _OVERSIZED):
            self._bounds.count(Bound.REQUEST_HEAD)
            status, why = b"431 Request Header Fields Too Large", _HANDSHAKE_TOO_LARGE
        self.transport.write(error_bytes(status, why))
        self.transport.close()

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.in_debt is not None:
            self._throttle(self.conn.in_debt)
        if self.conn.violated is not None:
            self._bounds.count(self.conn.violated)
            self.conn.violated = None
        if self._receives_large and self._large_in_time is None:
            self._large_in_time = self.loop.call_later(LARGE_MESSAGE_S, self._large_is_late)

    def accept_large_messages(self, large_lease: LargeMessageLease) -> None:
        """Take messages of up to `LARGE_MESSAGE_BYTES`, while there are places for them."""
        self.conn.large_lease, self.conn.max_message_size = large_lease, LARGE_MESSAGE_BYTES

    @property
    def _receives_large(self) -> bool:
        return self.conn.large_lease is not None and self.conn.large_lease.is_receiving

    def _large_is_late(self) -> None:
        self._large_in_time = None
        if self._is_open:
            self._bounds.count(Bound.REQUEST_TIME)
            self.conn.fail(CloseCode.POLICY_VIOLATION, f"A large message comes within {LARGE_MESSAGE_S:g} s.")
            self.handle_parser_exception()

    def _stop_timing_large(self) -> None:
        if self._large_in_time is not None:
            self._large_in_time.cancel()
            self._large_in_time = None

    def charge(self) -> None:
        """Slow down a peer that asks too often: each refused request costs a second's frames."""
        if (exceeded := self.conn.budget.charge(self.loop.time())) is not None:
            self._throttle(exceeded)

    def _throttle(self, exceeded: Bound) -> None:
        """Read on once the debt is repaid."""
        self.conn.in_debt = None
        self._bounds.count(exceeded)
        if not self.feed.holds(PauseReason.BUDGET):
            self.feed.hold(PauseReason.BUDGET)
            self._resume_reading_later()

    def _resume_reading_later(self) -> None:
        if (owed_s := self.conn.budget.wait_s(self.loop.time())) > 0:
            self.loop.call_later(owed_s, self._resume_reading_later)
        else:
            self.feed.release(PauseReason.BUDGET)

    def pause_writing(self) -> None:
        """Pause: the peer does not read. Soon nothing is read from it either.

        Reading is paused two turns later, so that sockets are polled in between. A slow reader, which gets more as soon as it
        has read, is then still heard: its pong shows that it is alive.
        """
        super().pause_writing()
        self.conn.peer_reads = False
        self.loop.call_soon(self.loop.call_soon, self._stop_listening)

    def _stop_listening(self) -> None:
        if not self.conn.peer_reads and not self.feed.holds(PauseReason.UNREAD):
            self._bounds.count(Bound.UNREAD)
            self.feed.hold(PauseReason.UNREAD)

    def resume_writing(self) -> None:
        """Resume: the peer reads again. The newest of its pings is answered."""
        super().resume_writing()
        self.conn.peer_reads = True
        self.feed.release(PauseReason.UNREAD)
        if self.conn.pending_pong:
            self.loop.call_soon(self._answer_late)  # not between the pieces of a message

    def _answer_late(self) -> None:
        if self.is_writable() and self.conn.pending_pong:
            self.transport.write(self.conn.pending_pong)
            self.conn.pending_pong = b""

    def handle_connect(self, event: Request) -> None:
        """Give the application the extension that ends the connection at once."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][PEER] = {"peer": self}

    async def run_asgi(self) -> None:
        """Run the application, then break the cycle with its scope: only the collector would free it."""
        await super().run_asgi()
        self.scope["extensions"].pop(PEER, None)

    async def send(self, message: Any) -> None:
        """Send the application's message. An answer instead of the handshake ends it; uvicorn would log an error."""
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent
        if self.close_sent:  # only the peer's close is missing
            self.feed.release(PauseReason.HANDSHAKE, PauseReason.MESSAGE)
            self.feed.enforce()  # uvicorn has resumed reading
        elif self.handshake_complete:
            self.feed.release(PauseReason.HANDSHAKE)

    async def receive(self) -> Any:
        """Return the next message; parsing goes on when all were taken, behind a large one when that was taken in."""
        if self.conn.large_lease is not None and self.conn.large_lease.release_consumed():
            self.feed.release(PauseReason.MESSAGE)
        message = await self.queue.get()
        if self.queue.empty() and not (
            self.conn.large_lease is not None and self.conn.large_lease.mark_delivered()
        ):
            self.feed.release(PauseReason.MESSAGE)
        return message

    def send_receive_event_to_app(self) -> None:
        """Pass on a whole message. Text that is not UTF-8 is the client's fault: uvicorn would log it as an error."""
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            if self._is_open:
                self.conn.send_close(1007, "Text is UTF-8.")
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()
        self._stop_timing_large()  # one that has begun behind it has its own time
        if not self.close_sent:
            self.feed.hold(PauseReason.MESSAGE)

    def keepalive_timeout(self) -> None:
        """End a connection whose peer is gone; unread bytes are dropped."""
        takes_all = not self.transport.get_write_buffer_size() and not _unread_bytes(self._socket)
        if self._is_open:
            self._bounds.count(Bound.HEARTBEAT)
        if self._is_open and self.feed.holds(
            PauseReason.BUDGET
        ):  # its pong is behind more bytes than it may send
            self.conn.fail(CloseCode.POLICY_VIOLATION, "More frames than a connection may send.")
        super().keepalive_timeout()
        if not takes_all:
            self.abort()

    def is_writable(self) -> bool:
        """Whether text may be written: the connection is open and the peer reads."""
        return self.writable.is_set() and self._is_open

    async def until_writable(self) -> bool:
        """Wait until the peer reads again; False if the connection has ended."""
        await self.writable.wait()
        return self._is_open

    def write(self, text: bytes) -> None:
        """Send a text message, in UTF-8. Call it only if `is_writable()` in this turn of the event loop."""
        self._write(text_message(text))

    def write_all(self, texts: Iterable[bytes]) -> None:
        """Send several text messages as `write` does; short ones take one system call."""
        self._write(b"".join(map(text_message, texts)))

    def write_binary(self, message: bytes) -> None:
        """Send a binary message. Call it only if `is_writable()` in this turn of the event loop."""
        self._write(text_message(message, head=0x82))

    def _write(self, messages: bytes) -> None:
        if len(messages) <= PIECE_BYTES:
            self.transport.write(messages)
            return
        for start in range(0, len(messages), PIECE_BYTES):
            self.transport.write(messages[start : start + PIECE_BYTES])

    @property
    def _is_open(self) -> bool:
        return self.conn.state is State.OPEN and not self.close_sent and not self.transport.is_closing()

    def abort(self) -> None:
        """End the connection by a reset."""
        if self.conn.close_sent is None:
            self._bounds.closed(None)
        reset(self.transport)

    @property
    def _socket(self) -> socket.socket | None:
        opened: socket.socket | None = self.transport.get_extra_info("socket")
        return opened


def _unread_bytes(opened: socket.socket | None) -> int:
    """Return the bytes that the kernel still holds for a peer (tcp(7), SIOCOUTQ); 0 if it does not say."""
    if opened is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
