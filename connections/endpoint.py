"""`GET /v1/ws`: the handshake, `hello`, and the life of a connection from there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from contextlib import suppress

import msgspec
import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from connections import codec
from connections.connection import Connection, Disconnected
from connections.errors import BadFrame, Close, CloseCode
from connections.frames import Error, GoAway, Hello, Ready
from connections.greeting import Greeting, Offer, greeting
from connections.handler import FrameHandler
from connections.origin import is_allowed
from connections.outbox import Outbox
from connections.registry import Registry
from engine.door import Engine
from engine.errors import EngineError
from sessions.records import Owner
from sessions.service import Sessions

SUBPROTOCOL = "midstream.v1"
HELLO_S = 5.0
ABORT = "midstream.abort"
"""The ASGI extension that ends a connection whose peer does not read: its `abort` is called without arguments."""
LOADING_S = 10.0
CLOSE_S = 2.0
OUTBOX_BYTES = 1024 * 1024
ANONYMOUS = "anonymous"

_log = structlog.get_logger("midstream.connection")


class Endpoint:
    """Serves WebSocket connections."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        registry: Registry,
        engine: Engine,
        offer: Offer,
        allowed_origins: Collection[str],
        hello_s: float = HELLO_S,
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._engine = engine
        self._offer = offer
        self._allowed_origins = allowed_origins
        self._hello_s = hello_s

    async def accept(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not is_allowed(origin, host=host, allowed=self._allowed_origins):
            await websocket.close()  # before accept: HTTP 403
            return
        offered = websocket.scope.get("subprotocols", ())
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        transport = _Socket(websocket)
        try:
            hello = await _hello(transport, within_s=self._hello_s)
            await self._serve(transport, hello, await self._greeting())
        except Close as close:
            await transport.close(close.code, close.reason)
        except Disconnected:
            return
        except Exception:  # noqa: BLE001 - a task's boundary: this connection ends, the others don't notice
            _log.exception("connection failed")
            await transport.close(CloseCode.INTERNAL, "An internal error; reconnect.")

    async def _greeting(self) -> Greeting:
        """What `ready` says; once the model was loaded, this does not wait. Raises Close."""
        try:
            facts = self._engine.facts or await self._engine.ready(LOADING_S)
        except EngineError as error:
            raise Close(CloseCode.OVERLOAD, "The model is not loaded yet; reconnect.") from error
        return greeting(self._offer, facts)

    async def _serve(self, transport: _Socket, hello: Hello, said: Greeting) -> None:
        client_id = hello.client_id or secrets.token_hex(16)
        owner = Owner(ANONYMOUS, client_id)
        connection = Connection(transport, owner=owner, outbox=Outbox(max_bytes=OUTBOX_BYTES))
        self._registry.add(owner, connection)
        connection.push(
            Ready(
                ref=hello.ref,
                connection_id=connection.connection_id,
                client_id=client_id,
                **msgspec.structs.asdict(said),
            )
        )
        try:
            await connection.serve(FrameHandler(self._sessions, said.limits))
        finally:
            connection.closed = True
            self._registry.discard(owner, connection)
            self._sessions.disconnect(connection)

    def go_away(self, *, drain_ms: int, reason: str) -> None:
        """Tells every connection that the server is about to stop."""
        for connection in self._registry.connections():
            connection.push(GoAway(drain_ms=drain_ms, reason=reason))

    async def shut_all(self, *, within_s: float) -> None:
        """Closes every connection and waits until they are gone, or the time is up; clients reconnect."""
        for connection in self._registry.connections():
            connection.shut(Close(CloseCode.DRAIN, "The server stops; reconnect."))
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._registry.emptied()


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
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except TimeoutError:  # a peer that does not read can't be told, and would keep the socket for ever
            self._websocket.scope["extensions"][ABORT]["abort"]()
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer was faster


async def _hello(transport: _Socket, *, within_s: float) -> Hello:
    """The first frame. Raises Close, Disconnected."""
    try:
        async with asyncio.timeout(within_s):
            message = await transport.receive()
    except TimeoutError:
        raise Close(CloseCode.NO_HELLO, f"No hello within {within_s:g} s.") from None
    why = "The first frame must be a hello."
    try:
        frame = codec.decode(message)
        if isinstance(frame, Hello):
            return frame
        ref = frame.ref
    except BadFrame as error:
        why, ref = f"{why} {error}", error.ref
    await transport.send(codec.encode(Error(ref=ref, code="unauthenticated", message=why, retryable=False)))
    raise Close(CloseCode.UNAUTHENTICATED, "The first frame must be a hello.")
