"""A WebSocket of a door beside the native one: who may come in, and what ends it. What is said on it is the door's business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import structlog
from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.gate.client_address import client_of
from connections.http.json_answers import foreign_page, too_many_at_once
from connections.http.refusals import Refusal
from connections.limits.bounds import Tally
from connections.limits.limiters import Limiters
from connections.line.connection import Disconnected
from connections.native.endpoint import Socket
from connections.openai.problems import counted_as, problem_of
from connections.wire.errors import Close, CloseCode
from sessions.errors import Refused

_log = structlog.get_logger("midstream.connection")

G = TypeVar("G")


class SocketDoor(ABC, Generic[G]):
    """Serves sockets, each from handshake to close. `G`: who came in, and what they may have."""

    def __init__(self, *, access: AccessControl, limiters: Limiters, tally: Tally) -> None:
        self._access = access
        self._limiters = limiters
        self._tally = tally

    @abstractmethod
    async def receive(self, websocket: WebSocket) -> G:
        """Who comes, and for what. Raises Refused."""

    @abstractmethod
    async def serve(self, socket: Socket, guest: G) -> None:
        """Serves an accepted socket until it ends. Raises Close, Disconnected."""

    def subprotocol(self, guest: G) -> str | None:  # noqa: ARG002 - most doors have none
        """What both sides speak."""
        return None

    async def accept(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        if (foreign := self._shut_out(websocket)) is not None:
            await websocket.send_denial_response(foreign)
            return
        try:
            with self._limiters.waiting_room.place(client_of(websocket.scope)):
                guest = await self.receive(websocket)
        except Refused as refused:
            self._tally.told(counted_as(refused))
            await websocket.send_denial_response(problem_of(refused).response())
            return
        await websocket.accept(subprotocol=self.subprotocol(guest))
        await self._live(Socket(websocket, self._limiters.turns), guest)

    def _shut_out(self, websocket: WebSocket) -> Response | None:
        """The answer to whoever is not even asked who they are."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self._access.origins.allow(origin, host=host):
            self._limiters.refusals.count(Refusal.ORIGIN)
            return foreign_page(origin)
        if self._limiters.no_place_for(client_of(websocket.scope)):
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
