"""`python -m tests.attack.bare_socket`: a bare socket, to measure the cost of an attack's traffic by itself.

It takes all bytes, accepts every handshake and request, and understands nothing.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast

import uvloop

COMMAND = ("tests.attack.bare_socket",)
END = b"\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
READY = b'{"type":"ready","client_id":"anybody"}'
KEPT_BYTES = 64 * 1024
"""Bytes kept of an incomplete head."""


class Sink(asyncio.Protocol):
    """One connection. It does not read from a peer that does not take its answers."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._kept = b""
        self._is_socket = False
        self._has_greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's type is not a subclass

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if not self._is_socket:
            self._take_requests(data)
        elif not self._has_greeted:
            self._has_greeted = True
            self._transport.write(bytes([0x81, len(READY)]) + READY)

    def _take_requests(self, data: bytes) -> None:
        assert self._transport is not None
        self._kept += data
        heads = self._kept.count(END)
        self._is_socket = heads > 0 and b"upgrade: websocket" in self._kept.lower()
        self._transport.write(UPGRADED if self._is_socket else ANSWER * heads)
        self._kept = self._kept.rpartition(END)[2][-KEPT_BYTES:]


async def serve(port: int) -> None:
    """Serve on a port of loopback until cancelled."""
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(os.environ["MIDSTREAM_PORT"])))
