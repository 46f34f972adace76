"""uvicorn's WebSocket protocol, with little memory for peers that stopped reading and an end to their patience.

uvicorn waits for such a peer without a limit: neither its ping timeout nor a close gets past what is still unsent.
"""

from __future__ import annotations

from asyncio import BaseTransport
from http import HTTPStatus

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from connections.endpoint import ABORT

WRITE_BUFFER_BYTES = 32 * 1024


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
            self.scope["extensions"][ABORT] = {"abort": self.transport.abort}

    def keepalive_timeout(self) -> None:
        """Ends a connection whose peer is gone; what it did not read is dropped."""
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
