"""Bounds a WebSocket's frames: the fragments of a message, the budgets, and which pings are answered."""

from __future__ import annotations

from collections.abc import Callable, Generator

from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.server import ServerProtocol

from connections.frame_budget import FrameBudget, FrameKind
from connections.large_messages import LargeMessageLease
from connections.limits.bound_counters import Bound

MAX_FRAGMENTS = 64
"""Fragments of a message, empty ones included; more close the connection with 1008."""
MAX_HELLO_FRAMES = 16
"""Pings, pongs and fragments before the first whole message; one more closes the connection with 1008."""

_TOO_LARGE = "A message has at most {} bytes: upload a larger image by POST /v1/attachments, and send its id."
"""A close frame has room for a hundred characters (RFC 6455, section 5.5)."""
_TOO_MANY_LARGE = "Too many large messages at once: upload the image by POST /v1/attachments, or come back."
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
        """End the connection. Who sent too large a message is told how large ones come in: most are images."""
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
