"""Sockets at OpenAI's doors: a client that is not admitted is refused in OpenAI's terms, before the socket opens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.gate.client_address import client_of
from connections.line.socket_door import SocketDoor
from connections.openai.problems import counted_as, problem_of
from sessions.errors import Refused

G = TypeVar("G")


class OpenAiSocketDoor(SocketDoor[G]):
    """Serves sockets whose handshake identifies the client."""

    @abstractmethod
    async def guest(self, websocket: WebSocket) -> G:
        """Return the client and its request. Raises Refused."""

    async def receive(self, websocket: WebSocket) -> G | Response:
        """Return the client, or the refusal."""
        try:
            with self.limiters.waiting_room.place(client_of(websocket.scope)):
                return await self.guest(websocket)
        except Refused as refused:
            self.tally.told(counted_as(refused))
            return problem_of(refused).response()
