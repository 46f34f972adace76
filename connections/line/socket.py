"""A WebSocket below a connection: Starlette's, and what the server knows of it that ASGI does not say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from connections.limits.groups import address_group
from connections.limits.loop_turns import LoopTurns
from connections.line.connection import Disconnected
from connections.wire import codec
from connections.wire.frames import Frame

PEER = "midstream.peer"
"""The ASGI extension that reaches past the server's queues: its `peer` is a `Peer`."""
CLOSE_S = 2.0


class Peer(Protocol):
    """The socket below ASGI."""

    @property
    def is_writable(self) -> bool:
        """Whether text may be written: the connection is open, and its peer reads."""
        ...

    async def until_writable(self) -> bool:
        """Waits for a peer that reads again; False where the connection is over."""
        ...

    def write(self, text: bytes) -> None:
        """Sends a text message, UTF-8; only where it `is_writable` in this turn of the event loop."""
        ...

    def write_all(self, texts: Iterable[bytes]) -> None:
        """Sends several in one go, as `write` does."""
        ...

    def write_binary(self, message: bytes) -> None:
        """Sends a binary message; only where it `is_writable` in this turn of the event loop."""
        ...

    def charge(self) -> None:
        """Reads a peer more slowly that asked too often."""
        ...

    def abort(self) -> None:
        """Ends a connection whose peer does not read."""
        ...


class Socket:
    """Starlette's WebSocket as a `Transport`."""

    def __init__(self, websocket: WebSocket, turns: LoopTurns) -> None:
        self._websocket = websocket
        self._turns = turns
        self._group = address_group(websocket.scope) or str(id(self))
        self._peer: Peer = websocket.scope["extensions"][PEER]["peer"]
        self.write = self._peer.write  # found once: it is called with every delta
        self.write_all = self._peer.write_all
        self.write_binary = self._peer.write_binary

    async def receive(self) -> str | bytes:
        """The next message. Raises Disconnected."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        if not self._turns.take_nowait(self._group):
            await self._turns.take(self._group)
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    @property
    def is_writable(self) -> bool:
        """Whether `write` may be called."""
        return self._peer.is_writable

    async def writable(self) -> None:
        """Waits until `write` may be called. Raises Disconnected."""
        if not await self._peer.until_writable():
            raise Disconnected

    def charge(self) -> None:
        """Notes a request that was refused because too many came."""
        self._peer.charge()

    def tell(self, frame: Frame) -> None:
        """Sends what a peer is told before there is a connection, if it is still there."""
        if self.is_writable:
            self.write(codec.encode(frame))

    async def close(self, code: int, reason: str) -> None:
        """Ends the connection, within a bounded time also where the peer does not read."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except TimeoutError:  # a peer that does not read can't be told, and would keep the socket for ever
            self._peer.abort()
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer was faster
