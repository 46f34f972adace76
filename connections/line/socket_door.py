"""The common part of doors for sockets: admission, the first message, the close. Each door defines the rest."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import structlog
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.gate.client_address import client_of
from connections.gate.origin import is_secure
from connections.http.json_answers import about_to_stop, foreign_page, too_many_at_once
from connections.http.refusals import Door, Refusal
from connections.limits.bounds import Bound
from connections.limits.limiters import Limiters
from connections.line.connection import Disconnected
from connections.line.socket import Socket
from connections.wire.errors import Close, CloseCode

HELLO_S = 5.0
"""Seconds for the first message of a socket, if that authenticates."""
OUTBOX_BYTES = 512 * 1024

_log = structlog.get_logger("midstream.connection")

G = TypeVar("G")


class SocketDoor(ABC, Generic[G]):
    """Serves sockets, each from handshake to close. `G`: what the handshake tells of the client."""

    def __init__(
        self, door: Door, *, access: AccessControl, limiters: Limiters, hello_s: float = HELLO_S
    ) -> None:
        self.access = access
        self.limiters = limiters
        self.tally = limiters.tally(door)
        self._hello_s = hello_s

    @abstractmethod
    async def receive(self, websocket: WebSocket) -> G | Response:
        """Return what the handshake tells of the client, or the answer to a refused one."""

    @abstractmethod
    async def serve(self, socket: Socket, guest: G) -> None:
        """Serve an accepted socket until it ends. Raises Close, Disconnected."""

    def subprotocol(self, guest: G) -> str | None:  # noqa: ARG002 - most doors have none
        """Return the common subprotocol."""
        return None

    async def accept(self, websocket: WebSocket) -> None:
        """Serve one socket from handshake to close."""
        guest = self._shut_out(websocket) or await self.receive(websocket)
        if isinstance(guest, Response):
            await websocket.send_denial_response(guest)
            return
        await websocket.accept(subprotocol=self.subprotocol(guest))
        await self._live(Socket(websocket, self.limiters.turns), guest)

    async def first(self, socket: Socket, named: str) -> str | bytes:
        """Return the first message. `named`: what it has to be. Raises Close, Disconnected."""
        try:
            async with asyncio.timeout(self._hello_s):
                return await socket.receive()
        except TimeoutError:
            self.limiters.bounds.count(Bound.HELLO_TIME)
            raise Close(CloseCode.NO_HELLO, f"No {named} within {self._hello_s:g} s.") from None

    def _shut_out(self, websocket: WebSocket) -> Response | None:
        """Return the answer to a handshake that is refused before authentication."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self.access.origins.allow(origin, host=host, secure=is_secure(websocket)):
            self.limiters.refusals.count(Refusal.ORIGIN)
            return foreign_page(origin)
        if self.limiters.waiting_room.is_closed:
            return about_to_stop()
        if self.limiters.no_place_for(client_of(websocket.scope)):
            return too_many_at_once()
        return None

    async def _live(self, socket: Socket, guest: G) -> None:
        try:
            await self.serve(socket, guest)
        except Close as close:
            await socket.close(close.code, close.reason)
        except Disconnected:
            return
        except Exception:  # noqa: BLE001 - a task's boundary: this connection ends, the others don't notice
            _log.exception("connection failed")
            await socket.close(CloseCode.INTERNAL, "An internal error; reconnect.")
