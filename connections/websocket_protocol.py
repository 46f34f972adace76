"""uvicorn's WebSocket protocol with limits both ways: on what a peer sends, and on what it leaves unread.

uvicorn parses whatever arrives, queues pongs that nobody reads, and waits forever for a peer that stopped reading: neither its
ping timeout nor a close gets past unsent bytes. Here bytes are parsed in parts (`connections/http_protocol.py`) within a budget
(`LimitedProtocol`), and nothing is read from a peer that leaves its answers unread. While a peer reads, messages bypass ASGI's
queues: they are sent sooner, for half the work.
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

from connections.http_protocol import PauseReason, SharedServerState, ThrottledReader, error_bytes, reset
from sessions.limits.bounds import (
    LARGE_MESSAGE_BYTES,
    LARGE_MESSAGE_S,
    MAX_FRAGMENTS,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAMES,
    WRITE_BUFFER_BYTES,
    Bound,
)
from sessions.limits.rates import FrameBudget, FrameKind
from sessions.limits.shares import FairShare, Subject

PEER = "midstream.peer"
"""The ASGI extension that bypasses the server's queues: its `peer` is a `WebSocketProtocol`."""
_TOO_LARGE = "At most {} bytes a message: upload a larger image by POST /v1/attachments, and send its id."
"""The reason in a close frame has at most 123 bytes (RFC 6455, section 5.5)."""
_TOO_MANY_LARGE = "Too many large messages at once: upload the image by POST /v1/attachments, or retry later."
_MESSAGE_OPCODES = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)

_PONG = b"\x8a"


class LargeMessageLease:
    """Holds a place among the large request bodies while a large message arrives, until it has been processed."""

    def __init__(self, bodies: FairShare, subject: Subject) -> None:
        self._bodies = bodies
        self._subject = subject
        self._slots = self._complete = self._delivered = 0
        self.is_receiving = False
        """Whether the message being received is a large one."""

    def admit(self, size: int) -> bool:
        """Return whether a message may have `size` bytes. A large message takes a place."""
        if size <= MAX_FRAME_BYTES or self.is_receiving:
            return True
        if not self._bodies.has_capacity_for(self._subject):
            return False
        self._bodies.take(self._subject)
        self._slots += 1
        self.is_receiving = True
        return True

    def message_ended(self, size: int) -> None:
        """Note the end of a message. If only frame heads or a ping made it look large, its place is given back."""
        if self.is_receiving and size > MAX_FRAME_BYTES:
            self._complete += 1
        elif self.is_receiving:
            self._give_back(1)
        self.is_receiving = False

    def mark_delivered(self) -> bool:
        """Note that the application has received all complete messages; return whether any is large."""
        self._delivered, self._complete = self._complete, 0
        return self._delivered > 0

    def release_consumed(self) -> bool:
        """Give back the places of large messages that the application has processed; return whether there were any."""
        processed, self._delivered = self._delivered, 0
        if processed:
            self._give_back(processed)
        return processed > 0

    def end(self) -> None:
        """Give all places back when the connection has ended."""
        self._complete = self._delivered = 0
        self._give_back(self._slots)

    def _give_back(self, slots: int) -> None:
        self._slots -= slots
        self._bodies.give_back(self._subject, slots)


class LimitedProtocol(ServerProtocol):
    """The protocol of one socket, with limits; it replaces `bare`, which uvicorn made."""

    def __init__(self, bare: ServerProtocol, *, max_size: int, clock: Callable[[], float]) -> None:
        super().__init__(extensions=bare.available_extensions, max_size=max_size, logger=bare.logger)
        self.budget = FrameBudget()
        self.exceeded: Bound | None = None
        """The budget exceeded last, until parsing pauses for it."""
        self.violated: Bound | None = None
        """The bound that ended the connection, until it is counted."""
        self.peer_reads = True
        self.pending_pong = b""
        """The pong for the newest ping of a peer that did not read; RFC 6455, section 5.5.3, asks for no more."""
        self._clock = clock
        self._kind = FrameKind.TEXT
        self._fragments = 0
        self._frames_before: int | None = 0
        """Frames before the first whole message; None after it."""
        self._wanted = 0
        self.large_lease: LargeMessageLease | None = None
        self._read_exact = self.reader.read_exact
        self.reader.read_exact = self._tracked_read  # type: ignore[method-assign, assignment]

    def missing_bytes(self) -> int:
        """Return how many bytes of the current frame, or of its head, are still missing."""
        return self._wanted - len(self.reader.buffer)

    def end(self) -> None:
        """Stop parsing, and break the reference cycle with the parser, which only the garbage collector would free."""
        self.parser.close()
        if self.large_lease is not None:
            self.large_lease.end()
        del self.reader.read_exact, self._read_exact

    def _tracked_read(self, length: int) -> Generator[None, None, bytearray]:
        self._wanted = length
        reading = self._read_exact(length)
        return reading if self.large_lease is None else self._leased_read(reading, length, self.large_lease)

    def _leased_read(
        self, reading: Generator[None, None, bytearray], length: int, large_lease: LargeMessageLease
    ) -> Generator[None, None, bytearray]:
        """Read, and take a place once the message is known to be large. Raises ProtocolError if none is free."""
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
        """Close the connection. If a message is too large, the reason says how to send it: most are images."""
        if code == CloseCode.MESSAGE_TOO_BIG:
            reason = _TOO_LARGE.format(self.max_message_size)
        super().fail(code, reason)

    def recv_frame(self, frame: Frame) -> None:
        """Accept a frame if it is within the limits. Raises ProtocolError."""
        self._count(frame)
        if frame.opcode is Opcode.PING:
            self.pending_pong = b""  # only the newest counts
            if not self.peer_reads:
                self.pending_pong = _PONG + len(frame.data).to_bytes() + bytes(frame.data)
                return
        size = (self.current_size or 0) + len(frame.data)
        super().recv_frame(frame)
        if self.large_lease is not None and frame.fin and frame.opcode in _MESSAGE_OPCODES:
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
            self.exceeded = exceeded

    def _kind_of(self, frame: Frame) -> FrameKind:
        if frame.opcode is Opcode.CONT:
            self._fragments += 1
            if self._fragments > MAX_FRAGMENTS:
                self._break(Bound.FRAGMENTS, f"A message may have at most {MAX_FRAGMENTS} fragments.")
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
"""A large message is written to the transport in pieces of this many bytes: each is freed once the kernel has it."""
_OVERSIZED = (TooManyHeaders, HeaderLineTooLong, RequestLineTooLong)
_HANDSHAKE_TOO_LARGE = b"A handshake may have at most %d headers, and %d bytes in each line." % (
    MAX_NUM_HEADERS,
    MAX_LINE_LENGTH,
)


def message_frame(message: bytes, *, head: int = 0x81) -> bytes:
    """Return a server's message as one frame, without extension or mask: RFC 6455, section 5.2. A `head` of 0x82 makes it binary.

    `websockets` makes the same bytes at ten times the cost, and each delta needs a frame for each reader.
    """
    length = len(message)
    if length < 126:  # noqa: PLR2004 - the lengths of the specification
        return head.to_bytes() + length.to_bytes() + message
    if length < 1 << 16:
        return head.to_bytes() + b"\x7e" + length.to_bytes(2, "big") + message
    return head.to_bytes() + b"\x7f" + length.to_bytes(8, "big") + message


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's end of one socket, with this module's limits."""

    conn: LimitedProtocol
    feed: ThrottledReader

    def __init__(self, config: Config, server_state: SharedServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = LimitedProtocol(self.conn, max_size=config.ws_max_size, clock=self.loop.time)
        self.read_paused = True  # so that uvicorn does not pause reading: `feed` does
        self._bounds = server_state.bounds
        self._scheduler = server_state.scheduler
        self._large_deadline: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Limit the unsent bytes. No frame is parsed before the handshake is done."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.feed = ThrottledReader(
            self.transport, self._scheduler, self._parse, copied=self.conn.missing_bytes
        )
        self.feed.hold(PauseReason.HANDSHAKE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count how the connection ended, if the server ended it."""
        self.feed.end()
        self._cancel_large_deadline()
        if self.conn.close_sent is not None and not self.conn.close_rcvd_then_sent:
            self._bounds.closed(self.conn.close_sent.code)
        super().connection_lost(exc)
        self.conn.end()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes when this peer is next in line."""
        if self.handshake_initiated:
            self.feed.take(data)
        else:  # the head of the handshake, all at once
            super().data_received(data)
            if not self.handshake_initiated:
                self._refuse_head()

    def _refuse_head(self) -> None:
        """Answer a handshake that `websockets` can't read: uvicorn would leave it open, and fail at shutdown."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        status, why = b"400 Bad Request", b"This is not a WebSocket handshake."
        if isinstance(self.conn.handshake_exc, _OVERSIZED):
            self._bounds.count(Bound.REQUEST_HEAD)
            status, why = b"431 Request Header Fields Too Large", _HANDSHAKE_TOO_LARGE
        self.transport.write(error_bytes(status, why))
        self.transport.close()

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.exceeded is not None:
            self._throttle(self.conn.exceeded)
        if self.conn.violated is not None:
            self._bounds.count(self.conn.violated)
            self.conn.violated = None
        if self._receives_large and self._large_deadline is None:
            self._large_deadline = self.loop.call_later(LARGE_MESSAGE_S, self._large_timed_out)

    def accept_large_messages(self, large_lease: LargeMessageLease) -> None:
        """Accept messages of up to `LARGE_MESSAGE_BYTES`, as long as there are places for them."""
        self.conn.large_lease, self.conn.max_message_size = large_lease, LARGE_MESSAGE_BYTES

    @property
    def _receives_large(self) -> bool:
        return self.conn.large_lease is not None and self.conn.large_lease.is_receiving

    def _large_timed_out(self) -> None:
        self._large_deadline = None
        if self._is_open:
            self._bounds.count(Bound.REQUEST_TIME)
            self.conn.fail(
                CloseCode.POLICY_VIOLATION, f"Large messages have {LARGE_MESSAGE_S:g} s to arrive."
            )
            self.handle_parser_exception()

    def _cancel_large_deadline(self) -> None:
        if self._large_deadline is not None:
            self._large_deadline.cancel()
            self._large_deadline = None

    def charge(self) -> None:
        """Slow down a peer that asks too often: each refused request costs a second's frames."""
        if (exceeded := self.conn.budget.charge(self.loop.time())) is not None:
            self._throttle(exceeded)

    def _throttle(self, exceeded: Bound) -> None:
        """Pause parsing until the debt is repaid."""
        self.conn.exceeded = None
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
        """Note that the peer does not read. Soon nothing is read from it either.

        Reading pauses two iterations of the event loop later, so that sockets are polled in between. Thus the pong of a slow
        reader still gets through, which shows that the peer is alive.
        """
        super().pause_writing()
        self.conn.peer_reads = False
        self.loop.call_soon(self.loop.call_soon, self._stop_reading)

    def _stop_reading(self) -> None:
        if not self.conn.peer_reads and not self.feed.holds(PauseReason.UNREAD):
            self._bounds.count(Bound.UNREAD)
            self.feed.hold(PauseReason.UNREAD)

    def resume_writing(self) -> None:
        """Note that the peer reads again, and answer the newest of its pings."""
        super().resume_writing()
        self.conn.peer_reads = True
        self.feed.release(PauseReason.UNREAD)
        if self.conn.pending_pong:
            self.loop.call_soon(self._send_pending_pong)  # not between the pieces of a message

    def _send_pending_pong(self) -> None:
        if self.is_writable() and self.conn.pending_pong:
            self.transport.write(self.conn.pending_pong)
            self.conn.pending_pong = b""

    def handle_connect(self, event: Request) -> None:
        """Give the application this socket, so that it can bypass ASGI's queues."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][PEER] = {"peer": self}

    async def run_asgi(self) -> None:
        """Run the application, then break the reference cycle with its scope, which only the garbage collector would free."""
        await super().run_asgi()
        self.scope["extensions"].pop(PEER, None)

    async def send(self, message: Any) -> None:
        """Send the application's message. A refusal completes the handshake, too: otherwise uvicorn would log an error."""
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent
        if self.close_sent:  # only the peer's close is missing
            self.feed.release(PauseReason.HANDSHAKE, PauseReason.MESSAGE)
            self.feed.enforce()  # uvicorn has resumed reading
        elif self.handshake_complete:
            self.feed.release(PauseReason.HANDSHAKE)

    async def receive(self) -> Any:
        """Return the next message. Parsing resumes once all were received; after a large one, once that was processed."""
        if self.conn.large_lease is not None and self.conn.large_lease.release_consumed():
            self.feed.release(PauseReason.MESSAGE)
        message = await self.queue.get()
        if self.queue.empty() and not (
            self.conn.large_lease is not None and self.conn.large_lease.mark_delivered()
        ):
            self.feed.release(PauseReason.MESSAGE)
        return message

    def send_receive_event_to_app(self) -> None:
        """Pass a whole message on. Text that is not UTF-8 ends the connection; uvicorn would log the client's error as its own."""
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            if self._is_open:
                self.conn.send_close(1007, "Text must be UTF-8.")
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()
        self._cancel_large_deadline()  # a large message after it gets its own deadline
        if not self.close_sent:
            self.feed.hold(PauseReason.MESSAGE)

    def keepalive_timeout(self) -> None:
        """End a connection whose peer sends no pong; its unread bytes are dropped."""
        has_read_all = not self.transport.get_write_buffer_size() and not _unread_bytes(self._socket)
        if self._is_open:
            self._bounds.count(Bound.HEARTBEAT)
        # the pong may wait behind more bytes than a connection may send
        if self._is_open and self.feed.holds(PauseReason.BUDGET):
            self.conn.fail(CloseCode.POLICY_VIOLATION, "More frames than a connection may send.")
        super().keepalive_timeout()
        if not has_read_all:
            self.abort()

    def is_writable(self) -> bool:
        """Whether a message may be written: the connection is open and the peer reads."""
        return self.writable.is_set() and self._is_open

    async def until_writable(self) -> bool:
        """Wait until the peer reads again; False if the connection has ended."""
        await self.writable.wait()
        return self._is_open

    def write(self, text: bytes) -> None:
        """Send a text message, in UTF-8. Call it only if `is_writable()` in this iteration of the event loop."""
        self._write(message_frame(text))

    def write_all(self, texts: Iterable[bytes]) -> None:
        """Send several text messages as `write` does; short ones take one system call."""
        self._write(b"".join(map(message_frame, texts)))

    def write_binary(self, message: bytes) -> None:
        """Send a binary message. Call it only if `is_writable()` in this iteration of the event loop."""
        self._write(message_frame(message, head=0x82))

    def _write(self, frames: bytes) -> None:
        if len(frames) <= PIECE_BYTES:
            self.transport.write(frames)
            return
        for start in range(0, len(frames), PIECE_BYTES):
            self.transport.write(frames[start : start + PIECE_BYTES])

    @property
    def _is_open(self) -> bool:
        return self.conn.state is State.OPEN and not self.close_sent and not self.transport.is_closing()

    def abort(self) -> None:
        """End the connection with a reset."""
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
