"""`GET /v1/ws`: the handshake, `hello`, and the life of a connection from there."""

from __future__ import annotations

import asyncio
import secrets
from typing import Protocol

import msgspec
import structlog
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from connections.authentication.access import AccessControl
from connections.authentication.identity import Identity
from connections.authentication.standing import Standing
from connections.gate.client_address import client_of
from connections.http.json_answers import foreign_page, too_many_at_once
from connections.http.refusals import Door, Refusal
from connections.limits.bounds import Bound
from connections.limits.caller import caller_of
from connections.limits.groups import address_group
from connections.limits.limiters import Limiters
from connections.limits.loop_turns import LoopTurns
from connections.line.connection import Connection, Disconnected, refusal
from connections.line.outbox import Outbox
from connections.line.presence import Presence
from connections.line.rate_limiting import RateLimiter
from connections.native.greeting import Greeter, Greeting
from connections.native.handler import FrameHandler
from connections.spoken.desk import SpokenDesk
from connections.spoken.line import SpokenLine
from connections.wire import codec
from connections.wire.errors import BadFrame, Close, CloseCode, Unauthenticated
from connections.wire.facts import ServerTool
from connections.wire.features import AUDIO, SERVED, SHARE, TOOLS, understood
from connections.wire.frames import AuthRefresh, Error, Frame, Hello, Ready
from connections.wire.scopes import Grant
from engine.errors import EngineError
from sessions.errors import Refused
from sessions.service import Sessions

SUBPROTOCOL = "midstream.v1"
HELLO_S = 5.0
PEER = "midstream.peer"
"""The ASGI extension that reaches past the server's queues: its `peer` is a `Peer`."""
CLOSE_S = 2.0
OUTBOX_BYTES = 512 * 1024

_log = structlog.get_logger("midstream.connection")


class Peer(Protocol):
    """The socket below ASGI."""

    @property
    def is_writable(self) -> bool:
        """Whether text may be written: the connection is open, and its peer reads."""
        ...

    async def until_writable(self) -> bool:
        """Waits for a peer that reads again; False where the connection is over."""
        ...

    def write(self, text: bytes) -> None:
        """Sends a text message, UTF-8; only where it `is_writable` in this turn of the event loop."""
        ...

    def write_binary(self, message: bytes) -> None:
        """Sends a binary message; only where it `is_writable` in this turn of the event loop."""
        ...

    def charge(self) -> None:
        """Reads a peer more slowly that asked too often."""
        ...

    def abort(self) -> None:
        """Ends a connection whose peer does not read."""
        ...


class Endpoint:
    """Serves WebSocket connections."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        greeter: Greeter,
        access: AccessControl,
        presence: Presence,
        limiters: Limiters,
        spoken: SpokenDesk | None = None,
        hello_s: float = HELLO_S,
    ) -> None:
        """`spoken`: where conversations are spoken; None: this server hears nothing."""
        self._sessions = sessions
        self._greeter = greeter
        self._access = access
        self._presence = presence
        self._limiters = limiters
        self._tally = limiters.tally(Door.NATIVE)
        self._hello_s = hello_s
        self._spoken = spoken

    async def accept(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to close."""
        origin, host = websocket.headers.get("origin"), websocket.headers.get("host")
        if not self._access.origins.allow(origin, host=host):
            self._limiters.refusals.count(Refusal.ORIGIN)
            await websocket.send_denial_response(foreign_page(origin))
            return
        address = client_of(websocket.scope)
        if self._limiters.no_place_for(address):
            await websocket.send_denial_response(too_many_at_once())
            return
        offered = websocket.scope.get("subprotocols", ())
        await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
        transport = Socket(websocket, self._limiters.turns)
        try:
            with self._limiters.waiting_room.place(address):
                hello = await self._hello(transport)
                identity = await self._identify(transport, hello, websocket.headers.get("authorization"))
                said = await self._greeting(identity.grant)
            await self._serve(transport, hello, identity, said, scope=websocket.scope)
        except Close as close:
            await transport.close(close.code, close.reason)
        except Disconnected:
            return
        except Exception:  # noqa: BLE001 - a task's boundary: this connection ends, the others don't notice
            _log.exception("connection failed")
            await transport.close(CloseCode.INTERNAL, "An internal error; reconnect.")

    async def _hello(self, transport: Socket) -> Hello:
        """The first frame. Raises Close, Disconnected."""
        try:
            async with asyncio.timeout(self._hello_s):
                message = await transport.receive()
        except TimeoutError:
            self._limiters.bounds.count(Bound.HELLO_TIME)
            raise Close(CloseCode.NO_HELLO, f"No hello within {self._hello_s:g} s.") from None
        return self._hello_in(message, transport)

    async def _greeting(self, grant: Grant) -> Greeting:
        """What `ready` says. Raises Close."""
        try:
            return await self._greeter.greeting(grant)
        except EngineError as error:
            raise Close(CloseCode.OVERLOAD, "The model is not loaded yet; reconnect.") from error

    async def _identify(self, transport: Socket, hello: Hello, authorization: str | None) -> Identity:
        """Who says hello. Raises Close, Disconnected."""
        try:
            return await self._access.identify(authorization=authorization, token=hello.token)
        except Unauthenticated as refused:
            why = Error(ref=hello.ref, code=refused.code, message=str(refused), retryable=False)
            close = Close(CloseCode.UNAUTHENTICATED, str(refused))
        except Refused as refused:  # the store or the keys of who signs tokens: neither is the client's fault
            why = refusal(refused, hello.ref)
            close = Close(CloseCode.OVERLOAD, f"{refused} Reconnect.")
        self._tell(transport, why)
        raise close

    def _hello_in(self, message: str | bytes, transport: Socket) -> Hello:
        """The first frame. Raises Close."""
        why = "The first frame must be a hello."
        try:
            frame = codec.decode(message)
            if isinstance(frame, Hello):
                return frame
            ref = frame.ref
        except BadFrame as error:
            why, ref = f"{why} {error}", error.ref
        refused = Error(ref=ref, code=Unauthenticated.code, message=why, retryable=False)
        self._tell(transport, refused)
        raise Close(CloseCode.UNAUTHENTICATED, "The first frame must be a hello.")

    def _tell(self, transport: Socket, why: Error) -> None:
        self._tally.told(why.code)
        transport.tell(why)

    async def _serve(
        self, transport: Socket, hello: Hello, identity: Identity, said: Greeting, *, scope: Scope
    ) -> None:
        client_id = hello.client_id or secrets.token_hex(16)
        caller = caller_of(identity, client_id, scope)
        limits = self._limiters.limits_of(caller.client, said.limits)
        said = msgspec.structs.replace(said, limits=limits)
        connection = Connection(
            transport,
            caller=caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=understood(hello.features),
            tally=self._tally,
        )
        ready = Ready(
            ref=hello.ref,
            connection_id=connection.connection_id,
            client_id=client_id,
            features=self._features(),
            tools=_tools_of(self._sessions) if TOOLS in connection.features else (),
            **msgspec.structs.asdict(said),
        )
        async with self._presence.of(connection):
            connection.push(ready)
            with self._access.inside(identity, connection) as standing:
                refresh = _Refresh(standing, connection, ready)
                spoken = SpokenLine(self._spoken, connection)
                handler = FrameHandler(self._sessions, said.limits, refresh.answer, spoken)
                limited = RateLimiter(handler, self._limiters)
                spoken.say_as_frame = limited.handle
                decode = codec.decode_with_sound if AUDIO in connection.features else codec.decode
                await connection.serve(limited, decode)

    def _features(self) -> tuple[str, ...]:
        """What this server has beyond the base."""
        shares, speaks = self._sessions.shares, self._spoken is not None
        return SERVED + ((SHARE,) if shares else ()) + ((AUDIO,) if speaks else ())


def _tools_of(sessions: Sessions) -> tuple[ServerTool, ...]:
    """What the server runs, as a client is told of it."""
    return tuple(
        ServerTool(name=tool.name, description=tool.description, approval=tool.approval.value)
        for tool in sessions.tools.offered()
    )


class _Refresh:
    """Answers `auth.refresh`."""

    def __init__(self, standing: Standing, connection: Connection, ready: Ready) -> None:
        self._standing = standing
        self._connection = connection
        self._ready = ready

    async def answer(self, frame: AuthRefresh) -> None:
        """Says `ready` again where the new token is good. Raises KeySetDown, StoreDown."""
        if await self._standing.refresh(frame.token, ref=frame.ref):
            self._connection.push(msgspec.structs.replace(self._ready, ref=frame.ref))


class Socket:
    """Starlette's WebSocket as a `Transport`."""

    def __init__(self, websocket: WebSocket, turns: LoopTurns) -> None:
        self._websocket = websocket
        self._turns = turns
        self._group = address_group(websocket.scope) or str(id(self))
        self._peer: Peer = websocket.scope["extensions"][PEER]["peer"]
        self.write = self._peer.write  # found once: it is called with every delta
        self.write_binary = self._peer.write_binary

    async def receive(self) -> str | bytes:
        """The next message. Raises Disconnected."""
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        if not self._turns.take_nowait(self._group):
            await self._turns.take(self._group)
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    @property
    def is_writable(self) -> bool:
        """Whether `write` may be called."""
        return self._peer.is_writable

    async def writable(self) -> None:
        """Waits until `write` may be called. Raises Disconnected."""
        if not await self._peer.until_writable():
            raise Disconnected

    def charge(self) -> None:
        """Notes a request that was refused because too many came."""
        self._peer.charge()

    def tell(self, frame: Frame) -> None:
        """Sends what a peer is told before there is a connection, if it is still there."""
        if self.is_writable:
            self.write(codec.encode(frame))

    async def close(self, code: int, reason: str) -> None:
        """Ends the connection, within a bounded time also where the peer does not read."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except TimeoutError:  # a peer that does not read can't be told, and would keep the socket for ever
            self._peer.abort()
        except (WebSocketDisconnect, RuntimeError):
            return  # the peer was faster
