"""Sockets at OpenAI's doors: who may not come in is told so in its words, before there is a socket."""

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
    """Serves sockets whose handshake says who comes."""

    @abstractmethod
    async def guest(self, websocket: WebSocket) -> G:
        """Who comes, and for what. Raises Refused."""

    async def receive(self, websocket: WebSocket) -> G | Response:
        """Who comes, or the refusal."""
        try:
            with self.limiters.waiting_room.place(client_of(websocket.scope)):
                return await self.guest(websocket)
        except Refused as refused:
            self.tally.told(counted_as(refused))
            return problem_of(refused).response()
