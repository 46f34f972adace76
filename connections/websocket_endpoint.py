"""The common part of doors for sockets: admission, the first message, the close. Each door defines the rest."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import structlog
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.connection import Disconnected
from connections.http.json_responses import draining_refusal, forbidden_origin, too_many_handshakes
from connections.http.refusal_counters import EndpointName, Refusal
from connections.limits.bound_counters import Bound
from connections.limits.limiters import Limiters
from connections.middleware.client_address import client_address_of
from connections.middleware.origins import is_secure
from connections.protocol.errors import Close, CloseCode
from connections.websocket_transport import WebSocketTransport

HELLO_S = 5.0
"""Seconds for the first message of a socket, if that authenticates."""
OUTBOX_BYTES = 512 * 1024

_log = structlog.get_logger("midstream.connection")

HandshakeT = TypeVar("HandshakeT")


class WebSocketEndpoint(ABC, Generic[HandshakeT]):
    """Serves sockets, each from handshake to close. `HandshakeT`: what the handshake tells of the client."""

    def __init__(
        self, endpoint: EndpointName, *, access: AccessControl, limiters: Limiters, hello_s: float = HELLO_S
    ) -> None:
        self.access = access
        self.limiters = limiters
        self.tally = limiters.tally(endpoint)
        self._hello_s = hello_s

    @abstractmethod
    async def receive(self, websocket: WebSocket) -> HandshakeT | Response:
        """Return what the handshake tells of the client, or the answer to a refused one."""

    @abstractmethod
    async def serve(self, socket: WebSocketTransport, handshake_info: HandshakeT) -> None:
        """Serve an accepted socket until it ends. Raises Close, Disconnected."""

    def subprotocol(self, handshake_info: HandshakeT) -> str | None:  # noqa: ARG002 - most doors have none
        """Return the common subprotocol."""
        return None

    async def accept(self, websocket: WebSocket) -> None:
        """Serve one socket from handshake to close."""
        handshake_info = self._reject_handshake(websocket) or await self.receive(websocket)
        if isinstance(handshake_info, Response):
            await websocket.send_denial_response(handshake_info)
            return
        await websocket.accept(subprotocol=self.subprotocol(handshake_info))
        await self._run(WebSocketTransport(websocket, self.limiters.turns), handshake_info)

    async def first(self, socket: WebSocketTransport, named: str) -> str | bytes:
        """Return the first message. `named`: what it has to be. Raises Close, Disconnected."""
        try:
            async with asyncio.timeout(self._hello_s):
                return await socket.receive()
        except TimeoutError:
            self.limiters.bounds.count(Bound.HELLO_TIME)
            raise Close(CloseCode.NO_HELLO, f"No {named} within {self._hello_s:g} s.") from None

    def _reject_handshake(self, websocket: WebSocket) -> Response | None:
        """Return the answer to a handshake that is refused before authentication."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self.access.origins.allow(origin, host=host, secure=is_secure(websocket)):
            self.limiters.refusals.count(Refusal.ORIGIN)
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
