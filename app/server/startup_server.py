"""Answers probes while the service waits for its store."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.server.server import Server, start_listening
from connections.http.json_responses import json_response, refusal
from sessions.errors import StoreDown


class StartupServer:
    """A server that begins with the first failure of the store: until then connections are refused, and a proxy goes to another replica."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        server: Callable[[ASGIApp], Server],
        report: Callable[[str], object],
    ) -> None:
        """`report`: returns the body of `/readyz`, given the reason for waiting."""
        self._listener = listener
        self._server = server(self._answer)
        self._report = report
        self._why = ""
        self._serving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def until_ready(self) -> AsyncIterator[Callable[[StoreDown], None]]:
        """Yield what is called with each failure of the store."""
        try:
            yield self._failed
        finally:
            await self.end()

    def _failed(self, why: StoreDown) -> None:
        self._why = str(why)
        if self._serving is None:
            start_listening(self._listener)
            served = self._listener.dup()  # the server closes its own
            self._serving = asyncio.create_task(self._server.serve(sockets=[served]))

    async def end(self) -> None:
        """Stop answering. New connections wait for the next server of the listener."""
        if self._serving is not None:
            self._server.end()
            await self._serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(self._response(scope))
        else:
            await self._response(scope)(scope, receive, send)

    def _response(self, scope: Scope) -> Response:
        match HTTPConnection(scope).url.path:
            case "/health" | "/healthz":
                return json_response({"status": "ok"})
            case "/readyz":
                return json_response(self._report(self._why), status=503)
            case _:
                return refusal(
                    503, StoreDown.code, f"The service waits for its store. {self._why}", {"Retry-After": "1"}
                )
