"""`GET /v1/ws`: the handshake, `hello`, and the life of a connection from there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from connections import codec
from connections.connection import Connection, Disconnected
from connections.errors import BadFrame, Close, CloseCode
from connections.frames import Error, GoAway, Hello, Limits, Ready, ServerFacts
from connections.handler import FrameHandler
from connections.origin import is_allowed
from connections.outbox import Outbox
from connections.registry import Registry
from sessions.records import Owner
from sessions.service import Sessions

SUBPROTOCOL = "midstream.v1"
HELLO_S = 5.0
OUTBOX_BYTES = 1024 * 1024
ANONYMOUS = "anonymous"


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What every `ready` says."""

    model: str
    heartbeat_ms: int
    resume_ttl_s: int
    limits: Limits
    server: ServerFacts


class Endpoint:
    """Serves WebSocket connections."""

    def __init__(
        self, *, sessions: Sessions, registry: Registry, greeting: Greeting, allowed_origins: Collection[str]
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._greeting = greeting
        self._allowed_origins = allowed_origins
        self._handler = FrameHandler(sessions, greeting.limits)

    async def __call__(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not is_allowed(origin, host=host, allowed=self._allowed_origins):
            await websocket.close()  # before accept: HTTP 403
            return
        offered = websocket.scope.get("subprotocols", ())
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        transport = _Socket(websocket)
        try:
            hello = await _hello(transport)
        except Close as close:
            await transport.close(close.code, close.reason)
        except Disconnected:
            return
        else:
            await self._serve(transport, hello)

    async def _serve(self, transport: _Socket, hello: Hello) -> None:
        client_id = hello.client_id or secrets.token_hex(16)
        owner = Owner(ANONYMOUS, client_id)
        connection = Connection(transport, owner=owner, outbox=Outbox(max_bytes=OUTBOX_BYTES))
        try:
            self._registry.add(owner, connection)
        except Close as close:
            await transport.close(close.code, close.reason)
            return
        connection.push(
            Ready(
                ref=hello.ref,
                connection_id=connection.connection_id,
                client_id=client_id,
                **msgspec.structs.asdict(self._greeting),
            )
        )
        try:
            await connection.serve(self._handler)
        finally:
            connection.closed = True
            self._registry.discard(owner, connection)
            self._sessions.disconnect(connection)

    def go_away(self, *, drain_ms: int, reason: str) -> None:
        """Tells every connection that the server is about to stop."""
        for connection in self._registry.connections():
            connection.push(GoAway(drain_ms=drain_ms, reason=reason))

    def shut_all(self) -> None:
        """Closes every connection; clients reconnect."""
        for connection in self._registry.connections():
            connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))


class _Socket:
    """Starlette's WebSocket as a `Transport`."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def send(self, text: str) -> None:
        try:
            await self._websocket.send({"type": "websocket.send", "text": text})
        except (
            WebSocketDisconnect,
            RuntimeError,
        ) as error:  # RuntimeError: the server closed it (a frame too large)
            raise Disconnected from error

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer was faster


async def _hello(transport: _Socket) -> Hello:
    """The first frame. Raises Close, Disconnected."""
    try:
        async with asyncio.timeout(HELLO_S):
            message = await transport.receive()
    except TimeoutError:
        raise Close(CloseCode.NO_HELLO, f"No hello within {HELLO_S:g} s.") from None
    why = "The first frame must be a hello."
    try:
        if isinstance(frame := codec.decode(message), Hello):
            return frame
    except BadFrame as error:
        why = f"{why} {error}"
    await transport.send(codec.encode(Error(code="unauthenticated", message=why, retryable=False)))
    raise Close(CloseCode.UNAUTHENTICATED, "The first frame must be a hello.")
