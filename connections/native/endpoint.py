"""`GET /v1/ws`: the handshake, `hello`, and the life of a connection from there."""

from __future__ import annotations

import secrets

import msgspec
from starlette.types import Scope
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.authentication.standing import Standing
from connections.gate.client_address import client_of
from connections.http.refusals import Door
from connections.limits.caller import caller_of
from connections.limits.limiters import Limiters
from connections.line.connection import Connection, refusal
from connections.line.outbox import Outbox
from connections.line.presence import Presence
from connections.line.rate_limiting import RateLimiter
from connections.line.socket import Socket
from connections.line.socket_door import HELLO_S, OUTBOX_BYTES, SocketDoor
from connections.native.greeting import Greeter, Greeting
from connections.native.handler import FrameHandler
from connections.spoken.desk import SpokenDesk
from connections.spoken.line import SpokenLine
from connections.wire import codec
from connections.wire.errors import BadFrame, Close, CloseCode, Unauthenticated
from connections.wire.facts import ServerTool
from connections.wire.features import AUDIO, SERVED, SHARE, TOOLS, understood
from connections.wire.frames import AuthRefresh, Error, Hello, Ready
from connections.wire.scopes import Grant
from engine.errors import EngineError
from sessions.errors import Refused
from sessions.service import Sessions

SUBPROTOCOL = "midstream.v1"


class Endpoint(SocketDoor[WebSocket]):
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
        """`spoken`: the part for spoken conversations; None: this server has no speech recognition."""
        super().__init__(Door.NATIVE, access=access, limiters=limiters, hello_s=hello_s)
        self._sessions = sessions
        self._greeter = greeter
        self._presence = presence
        self._spoken = spoken

    async def receive(self, websocket: WebSocket) -> WebSocket:
        """Accept every client: its first frame authenticates it."""
        return websocket

    def subprotocol(self, guest: WebSocket) -> str | None:
        """Return our subprotocol, if it is offered."""
        return SUBPROTOCOL if SUBPROTOCOL in guest.scope.get("subprotocols", ()) else None

    async def serve(self, socket: Socket, guest: WebSocket) -> None:
        """Serve one socket, which begins with a hello. Raises Close, Disconnected."""
        with self.limiters.waiting_room.place(client_of(guest.scope)):
            hello = self._hello_in(await self.first(socket, "hello"), socket)
            identity = await self._identify(socket, hello, guest.headers.get("authorization"))
            said = await self._greeting(identity.grant)
        await self._serve(socket, hello, identity, said, scope=guest.scope)

    async def _greeting(self, grant: Grant) -> Greeting:
        """Return the `ready` frame. Raises Close."""
        try:
            return await self._greeter.greeting(grant)
        except EngineError as error:
            raise Close(CloseCode.OVERLOAD, "The model is not loaded yet; reconnect.") from error

    async def _identify(self, transport: Socket, hello: Hello, authorization: str | None) -> Identity:
        """Return the client that says hello. Raises Close, Disconnected."""
        try:
            if not self.access.asks_nobody:
                _check_same(hello.token, bearer(authorization))
            return await self.access.identify(authorization=authorization, token=hello.token)
        except Unauthenticated as refused:
            why = Error(ref=hello.ref, code=refused.code, message=str(refused), retryable=False)
            close = Close(CloseCode.UNAUTHENTICATED, str(refused))
        except Refused as refused:  # the store, or the keys that verify tokens: neither is the client's fault
            why = refusal(refused, hello.ref)
            close = Close(CloseCode.OVERLOAD, f"{refused} Reconnect.")
        self._tell(transport, why)
        raise close

    def _hello_in(self, message: str | bytes, transport: Socket) -> Hello:
        """Return the first frame. Raises Close."""
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
        self.tally.told(why.code)
        transport.tell(why)

    async def _serve(
        self, transport: Socket, hello: Hello, identity: Identity, said: Greeting, *, scope: Scope
    ) -> None:
        client_id = hello.client_id or secrets.token_hex(16)
        caller = caller_of(identity, client_id, scope)
        limits = self.limiters.limits_of(caller.client, said.limits)
        said = msgspec.structs.replace(said, limits=limits)
        connection = Connection(
            transport,
            caller=caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            features=understood(hello.features),
            tally=self.tally,
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
            with self.access.inside(identity, connection) as standing:
                refresh = _Refresh(standing, connection, ready)
                spoken = SpokenLine(self._spoken, connection)
                handler = FrameHandler(self._sessions, said.limits, refresh.answer, spoken)
                limited = RateLimiter(handler, self.limiters)
                spoken.say_as_frame = limited.handle
                decode = codec.decode_with_sound if AUDIO in connection.features else codec.decode
                try:
                    await connection.serve(limited, decode)
                finally:
                    spoken.say_as_frame = None  # breaks a cycle that only the collector would free

    def _features(self) -> tuple[str, ...]:
        """Return this server's features beyond the base."""
        shares, speaks = self._sessions.shares, self._spoken is not None
        return SERVED + ((SHARE,) if shares else ()) + ((AUDIO,) if speaks else ())


def _check_same(token: str | None, shown: str | None) -> None:
    """Raise Unauthenticated if a client's `hello` has another token than its handshake, which may be that of somebody else."""
    if None not in (token, shown) and token != shown:
        raise Unauthenticated(
            "The token in hello differs from that in the Authorization header.", why="two tokens"
        )


def _tools_of(sessions: Sessions) -> tuple[ServerTool, ...]:
    """Describe the server's tools for clients."""
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
        """Send `ready` again if the new token is valid. Raises KeySetDown, StoreDown."""
        if await self._standing.refresh(frame.token, ref=frame.ref):
            self._connection.push(msgspec.structs.replace(self._ready, ref=frame.ref))
