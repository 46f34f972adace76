"""The WebSocket of a connection: Starlette's, with the server's extension to ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from connections.connection import Disconnected
from connections.large_messages import LargeMessageLease
from connections.limits.loop_scheduler import REQUEST_COST, FairLoopScheduler
from connections.limits.owner_groups import address_group
from connections.protocol import codec
from connections.protocol.frames import Frame

PEER = "midstream.peer"
"""The ASGI extension that bypasses the server's queues: its `peer` is a `ServerSocket`."""
CLOSE_S = 2.0


class ServerSocket(Protocol):
    """The socket below ASGI."""

    @property
    def is_writable(self) -> bool:
        """Whether text may be written: the connection is open and the peer reads."""
        ...

    async def until_writable(self) -> bool:
        """Wait until the peer reads again; False if the connection has ended."""
        ...

    def write(self, text: bytes) -> None:
        """Send a text message, in UTF-8. Call it only if `is_writable` in this turn of the event loop."""
        ...

    def write_all(self, texts: Iterable[bytes]) -> None:
        """Send several messages in one go, as `write` does."""
        ...

    def write_binary(self, message: bytes) -> None:
        """Send a binary message. Call it only if `is_writable` in this turn of the event loop."""
        ...

    def charge(self) -> None:
        """Slow down a peer that asked too often."""
        ...

    def accept_large_messages(self, large_lease: LargeMessageLease) -> None:
        """Take messages of up to `LARGE_MESSAGE_BYTES`, while there are places for them."""
        ...

    def abort(self) -> None:
        """End a connection whose peer does not read."""
        ...


class WebSocketTransport:
    """Starlette's WebSocket as a `Transport`."""

    def __init__(self, websocket: WebSocket, turns: FairLoopScheduler) -> None:
        self._websocket = websocket
        self._turns = turns
        self._group = address_group(websocket.scope) or str(id(self))
        self._is_light = False
        self._peer: ServerSocket = websocket.scope["extensions"][PEER]["peer"]
        self.write = self._peer.write  # looked up once: it is called for every delta
        self.write_all = self._peer.write_all
        self.write_binary = self._peer.write_binary

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        self._is_light = self._turns.is_light(self._group)
        if not self._turns.take_nowait(self._group):
            await self._turns.take(self._group)
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    @property
    def is_writable(self) -> bool:
        """Whether `write` may be called."""
        return self._peer.is_writable

    async def writable(self) -> None:
        """Wait until `write` may be called. Raises Disconnected."""
        if not await self._peer.until_writable():
            raise Disconnected

    def accept_large_messages(self, large_lease: LargeMessageLease) -> None:
        """Take messages of up to `LARGE_MESSAGE_BYTES`, while there are places for them."""
        self._peer.accept_large_messages(large_lease)

    def charge(self) -> None:
        """Count a request that was refused for too many requests."""
        self._peer.charge()

    def request(self) -> AbstractContextManager[None]:
        """While the block lasts, the work of the last message is under way."""
        self._turns.light_clients.count(self._group, REQUEST_COST)
        return self._turns.light_clients.request() if self._is_light else nullcontext()

    def send_frame(self, frame: Frame) -> None:
        """Send a frame before there is a connection, if the peer is still there."""
        if self.is_writable:
            self.write(codec.encode(frame))

    async def close(self, code: int, reason: str) -> None:
        """End the connection, in bounded time even if the peer does not read."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (
            TimeoutError
        ):  # a peer that does not read gets no close frame, and would keep the socket for ever
            self._peer.abort()
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer closed first
