"""The common part of WebSocket endpoints: admission, the first message, the close. Each endpoint defines the rest."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import structlog
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from connections.authentication.access import AccessControl
from connections.authentication.caller import address_group
from connections.connection import Disconnected
from connections.http import (
    EndpointName,
    RefusalReason,
    draining_refusal,
    forbidden_origin,
    too_many_handshakes,
)
from connections.limiters import Limiters
from connections.loop_scheduler import REQUEST_COST, FairLoopScheduler
from connections.middleware import client_address_of, is_secure
from connections.protocol import codec
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Frame
from connections.websocket_protocol import PEER, LargeMessageLease, WebSocketProtocol
from sessions.limits.bounds import HELLO_S, Bound

CLOSE_S = 2.0
_log = structlog.get_logger("midstream.connection")
HandshakeT = TypeVar("HandshakeT")


class WebSocketEndpoint(ABC, Generic[HandshakeT]):
    """Serves sockets, each from handshake to close. `HandshakeT`: what the handshake says about the client."""

    def __init__(
        self, endpoint: EndpointName, *, access: AccessControl, limiters: Limiters, hello_s: float = HELLO_S
    ) -> None:
        self.access = access
        self.limiters = limiters
        self.tally = limiters.tally(endpoint)
        self._hello_s = hello_s

    @abstractmethod
    async def read_handshake(self, websocket: WebSocket) -> HandshakeT | Response:
        """Return what the handshake says about the client, or the response that refuses it."""

    @abstractmethod
    async def serve(self, socket: WebSocketTransport, handshake_info: HandshakeT) -> None:
        """Serve an accepted socket until it closes. Raises Close, Disconnected."""

    def subprotocol(self, handshake_info: HandshakeT) -> str | None:  # noqa: ARG002 - most endpoints have none
        """Return the subprotocol that both sides support; None: there is none."""
        return None

    async def handle(self, websocket: WebSocket) -> None:
        """Serve one socket from handshake to close."""
        handshake_info = self._reject_handshake(websocket) or await self.read_handshake(websocket)
        if isinstance(handshake_info, Response):
            await websocket.send_denial_response(handshake_info)
            return
        await websocket.accept(subprotocol=self.subprotocol(handshake_info))
        await self._run(WebSocketTransport(websocket, self.limiters.scheduler), handshake_info)

    async def first_message(self, socket: WebSocketTransport, expected: str) -> str | bytes:
        """Return the first message. `expected`: what it should be, for the error. Raises Close, Disconnected."""
        try:
            async with asyncio.timeout(self._hello_s):
                return await socket.receive()
        except TimeoutError:
            self.limiters.bounds.count(Bound.HELLO_TIME)
            raise Close(CloseCode.NO_HELLO, f"No {expected} within {self._hello_s:g} s.") from None

    def _reject_handshake(self, websocket: WebSocket) -> Response | None:
        """Return the response to a handshake that is refused before authentication; None: it is not refused."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self.access.origins.allow(origin, host=host, secure=is_secure(websocket)):
            self.limiters.refusals.count(RefusalReason.ORIGIN)
            return forbidden_origin(origin)
        if self.limiters.handshake_limit.is_closed:
            return draining_refusal()
        if self.limiters.rejects_handshake(client_address_of(websocket.scope)):
            return too_many_handshakes()
        return None

    async def _run(self, socket: WebSocketTransport, handshake_info: HandshakeT) -> None:
        try:
            await self.serve(socket, handshake_info)
        except Close as close:
            await socket.close(close.code, close.reason)
        except Disconnected:
            return
        except Exception:  # noqa: BLE001 - a task's boundary: this connection ends, the others don't notice
            _log.exception("connection failed")
            await socket.close(CloseCode.INTERNAL, "An internal error; reconnect.")


class WebSocketTransport:
    """Starlette's WebSocket as a `Transport`."""

    def __init__(self, websocket: WebSocket, scheduler: FairLoopScheduler) -> None:
        self._websocket = websocket
        self._scheduler = scheduler
        self._group = address_group(websocket.scope) or str(id(self))
        self._is_light = False
        self._peer: WebSocketProtocol = websocket.scope["extensions"][PEER]["peer"]
        self.is_writable = self._peer.is_writable  # looked up once: they are called for every delta
        self.write = self._peer.write
        self.write_all = self._peer.write_all
        self.write_binary = self._peer.write_binary

    async def receive(self) -> str | bytes:
        """Return the next message. Raises Disconnected."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        self._is_light = self._scheduler.is_light(self._group)
        if not self._scheduler.take_nowait(self._group):
            await self._scheduler.take(self._group)
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def writable(self) -> None:
        """Wait until `write` may be called. Raises Disconnected."""
        if not await self._peer.until_writable():
            raise Disconnected

    def accept_large_messages(self, large_lease: LargeMessageLease) -> None:
        """Accept messages of up to `LARGE_MESSAGE_BYTES`, as long as there are places for them."""
        self._peer.accept_large_messages(large_lease)

    def charge(self) -> None:
        """Count a request that a rate limit refused: a peer that keeps sending is read more slowly."""
        self._peer.charge()

    def request(self) -> AbstractContextManager[None]:
        """Count the last message as a request; while the block lasts, others may have to wait for it."""
        self._scheduler.light_clients.count(self._group, REQUEST_COST)
        return self._scheduler.light_clients.request() if self._is_light else nullcontext()

    def send_frame(self, frame: Frame) -> None:
        """Send a frame before there is a `Connection`, if the peer still reads."""
        if self.is_writable():
            self.write(codec.encode(frame))

    async def close(self, code: int, reason: str) -> None:
        """End the connection, in bounded time even if the peer does not read."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except TimeoutError:
            # a peer that does not read gets no close frame, and would keep the socket open forever
            self._peer.abort()
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer closed first


class MultilineTransport:
    """A `Transport` that sends each line as a message of its own."""

    def __init__(self, socket: WebSocketTransport) -> None:
        self._socket = socket
        self.receive = socket.receive
        self.is_writable = socket.is_writable
        self.writable = socket.writable
        self.charge = socket.charge
        self.request = socket.request
        self.close = socket.close

    def write_binary(self, message: bytes) -> None:
        """Send a binary frame like any other: this endpoint encodes it as lines."""
        self.write(message)

    def write(self, text: bytes) -> None:
        """Send a message for each line, all at once."""
        if text:
            self._socket.write_all(text.splitlines())
