"""uvicorn's WebSocket protocol, with little memory for peers that stopped reading and an end to their patience.

uvicorn waits for such a peer without a limit: neither its ping timeout nor a close gets past what is still unsent.
Text is written without a detour through ASGI's queues, where the peer reads: it is sent sooner, for half the work.
"""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
from asyncio import BaseTransport
from http import HTTPStatus

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from app.resets import reset
from connections.native.endpoint import PEER

WRITE_BUFFER_BYTES = 32 * 1024
PIECE_BYTES = 16 * 1024
"""A large message goes to the transport in pieces: each is forgotten once the kernel has it."""


def text_message(text: bytes) -> bytes:
    """A text message of a server as one frame: RFC 6455, section 5.2, with no extension and no mask.

    `websockets` makes the same bytes at ten times the cost; there is one of these for every delta and reader.
    """
    length = len(text)
    if length < 126:  # noqa: PLR2004 - the lengths of the specification
        return b"\x81" + length.to_bytes() + text
    if length < 1 << 16:
        return b"\x81\x7e" + length.to_bytes(2, "big") + text
    return b"\x81\x7f" + length.to_bytes(8, "big") + text


class Protocol(WebSocketsSansIOProtocol):
    """One socket."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Bounds what waits here for the kernel."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def handle_connect(self, event: Request) -> None:
        """Gives the application the extension that ends the connection at once."""
        super().handle_connect(event)
        if self.response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self.scope["extensions"][PEER] = {"peer": self}

    async def send(self, message: ASGISendEvent) -> None:
        """Takes the application's word; an answer in place of the handshake ends it, which uvicorn would log as an error."""
        await super().send(message)
        self.handshake_complete = self.handshake_complete or self.close_sent

    def send_receive_event_to_app(self) -> None:
        """Passes on a whole message. Text that is no UTF-8 is the client's fault: uvicorn would log it as an error."""
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self.frames = []
            if self._is_open:
                self.conn.send_close(1007, "Text is UTF-8.")
                self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        """Ends a connection whose peer is gone; what it did not read is dropped."""
        takes_all = not self.transport.get_write_buffer_size() and not _unread_bytes(self._socket)
        super().keepalive_timeout()
        if not takes_all:
            self.abort()

    @property
    def is_writable(self) -> bool:
        """Whether text may be written: the connection is open, and its peer reads."""
        return self.writable.is_set() and self._is_open

    async def until_writable(self) -> bool:
        """Waits for a peer that reads again; False where the connection is over."""
        await self.writable.wait()
        return self._is_open

    def write(self, text: bytes) -> None:
        """Sends a text message, UTF-8; only where it `is_writable` in this turn of the event loop."""
        message = text_message(text)
        if len(message) <= PIECE_BYTES:
            self.transport.write(message)
            return
        for start in range(0, len(message), PIECE_BYTES):
            self.transport.write(message[start : start + PIECE_BYTES])

    @property
    def _is_open(self) -> bool:
        return self.conn.state is State.OPEN and not self.close_sent and not self.transport.is_closing()

    def abort(self) -> None:
        """Ends the connection by a reset."""
        reset(self.transport)

    @property
    def _socket(self) -> socket.socket | None:
        opened: socket.socket | None = self.transport.get_extra_info("socket")
        return opened


def _unread_bytes(opened: socket.socket | None) -> int:
    """What the kernel still holds for a peer (tcp(7), SIOCOUTQ); 0 where it does not say."""
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
