"""Sockets at OpenAI's endpoints: a client that is not admitted is refused in OpenAI's terms, before the socket opens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

from starlette.responses import Response
from starlette.websockets import WebSocket

from connections.middleware.client_address import client_address_of
from connections.openai.problems import metric_code, problem_of
from connections.websocket_endpoint import WebSocketEndpoint
from sessions.errors import Refused

G = TypeVar("G")


class OpenAiWebSocketEndpoint(WebSocketEndpoint[G]):
    """Serves sockets whose handshake identifies the client."""

    @abstractmethod
    async def handshake_info(self, websocket: WebSocket) -> G:
        """Return the client and its request. Raises Refused."""

    async def receive(self, websocket: WebSocket) -> G | Response:
        """Return the client, or the refusal."""
        try:
            with self.limiters.handshake_limit.slot(client_address_of(websocket.scope)):
                return await self.handshake_info(websocket)
        except Refused as refused:
            self.tally.sent(metric_code(refused))
            return problem_of(refused).response()
