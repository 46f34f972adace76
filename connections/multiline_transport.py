"""A socket that takes several messages at once, each on a line."""

from __future__ import annotations

from connections.websocket_transport import WebSocketTransport


class MultilineTransport:
    """A `Transport` on top of another one."""

    def __init__(self, socket: WebSocketTransport) -> None:
        self._socket = socket
        self.writable = socket.writable
        self.charge = socket.charge
        self.request = socket.request
        self.close = socket.close

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        return await self._socket.receive()

    @property
    def is_writable(self) -> bool:
        """Whether `write` may be called."""
        return self._socket.is_writable

    def write_binary(self, message: bytes) -> None:
        """Do nothing: binary messages of other doors are lines here."""
        self.write(message)

    def write(self, text: bytes) -> None:
        """Send a message for each line, all in one go."""
        if text:
            self._socket.write_all(text.splitlines())
