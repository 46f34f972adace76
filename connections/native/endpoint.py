"""`GET /v1/ws`: the handshake, `hello`, and the life of a connection from there."""

from __future__ import annotations

import secrets
from functools import partial

import msgspec
from starlette.types import Scope
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl, SessionValidity, bearer
from connections.authentication.api_keys import Identity
from connections.authentication.caller import caller_of
from connections.connection import Connection, RateLimiter, error_frame
from connections.http import EndpointName
from connections.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.middleware import client_address_of
from connections.native.handler import FrameHandler
from connections.native.server_info import ReadyFields, ServerInfo
from connections.protocol import codec
from connections.protocol.base import (
    AUDIO,
    SERVED,
    SHARE,
    TOOLS,
    ServerTool,
    common_features,
)
from connections.protocol.errors import BadFrame, Close, CloseCode, Unauthenticated
from connections.protocol.frames import AuthRefresh, Error, Hello, Ready
from connections.voice import VoiceConnection, VoiceService
from connections.websocket_endpoint import WebSocketEndpoint, WebSocketTransport
from engine.errors import EngineError
from sessions.errors import Refused
from sessions.limits.bounds import HELLO_S
from sessions.service import Sessions

SUBPROTOCOL = "midstream.v1"


class NativeEndpoint(WebSocketEndpoint[WebSocket]):
    """Serves WebSocket connections."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        server_info: ServerInfo,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
        spoken: VoiceService | None = None,
        hello_s: float = HELLO_S,
    ) -> None:
        """`spoken`: the part for spoken conversations; None: this server has no speech recognition."""
        super().__init__(EndpointName.NATIVE, access=access, limiters=limiters, hello_s=hello_s)
        self._sessions = sessions
        self._server_info = server_info
        self._lifecycle = lifecycle
        self._spoken = spoken

    async def read_handshake(self, websocket: WebSocket) -> WebSocket:
        """Accept every client: its first frame authenticates it."""
        return websocket

    def subprotocol(self, handshake_info: WebSocket) -> str | None:
        """Return our subprotocol, if it is offered."""
        return SUBPROTOCOL if SUBPROTOCOL in handshake_info.scope.get("subprotocols", ()) else None

    async def serve(self, socket: WebSocketTransport, handshake_info: WebSocket) -> None:
        """Serve one socket, which begins with a hello. Raises Close, Disconnected."""
        with self.limiters.handshake_limit.slot(client_address_of(handshake_info.scope)):
            hello = self._receive_hello(await self.first_message(socket, "hello"), socket)
            identity = await self._identify(socket, hello, handshake_info.headers.get("authorization"))
            try:
                ready_fields = await self._server_info.ready_fields(identity.grant)
            except EngineError as error:
                raise Close(CloseCode.OVERLOAD, "The model is not loaded yet; reconnect.") from error
        await self._serve(socket, hello, identity, ready_fields, scope=handshake_info.scope)

    async def _identify(
        self, transport: WebSocketTransport, hello: Hello, authorization: str | None
    ) -> Identity:
        """Return the identity of the client that says hello. Raises Close, Disconnected."""
        try:
            if not self.access.allows_anonymous:
                _check_same(hello.token, bearer(authorization))
            return await self.access.identify(authorization=authorization, token=hello.token)
        except Unauthenticated as refused:
            why = Error(ref=hello.ref, code=refused.code, message=str(refused), retryable=False)
            close = Close(CloseCode.UNAUTHENTICATED, str(refused))
        except Refused as refused:  # the store, or the keys that verify tokens: neither is the client's fault
            why = error_frame(refused, hello.ref)
            close = Close(CloseCode.OVERLOAD, f"{refused} Reconnect.")
        self._send_error(transport, why)
        raise close

    def _receive_hello(self, message: str | bytes, transport: WebSocketTransport) -> Hello:
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
        self._send_error(transport, refused)
        raise Close(CloseCode.UNAUTHENTICATED, "The first frame must be a hello.")

    def _send_error(self, transport: WebSocketTransport, why: Error) -> None:
        self.tally.sent(why.code)
        transport.send_frame(why)

    async def _serve(
        self,
        transport: WebSocketTransport,
        hello: Hello,
        identity: Identity,
        ready_fields: ReadyFields,
        *,
        scope: Scope,
    ) -> None:
        client_id = hello.client_id or secrets.token_hex(16)
        caller = caller_of(identity, client_id, scope)
        limits = self.limiters.limits_of(caller.client, ready_fields.limits)
        ready_fields = msgspec.structs.replace(ready_fields, limits=limits)
        connection = Connection(
            transport,
            caller=caller,
            features=common_features(hello.features),
            tally=self.tally,
        )
        tools = tuple(
            ServerTool(name=tool.name, description=tool.description, approval=tool.approval.value)
            for tool in self._sessions.tools.offered()
        )
        shares, speaks = self._sessions.shares, self._spoken is not None
        ready = Ready(
            ref=hello.ref,
            connection_id=connection.connection_id,
            client_id=client_id,
            features=SERVED + ((SHARE,) if shares else ()) + ((AUDIO,) if speaks else ()),
            tools=tools if TOOLS in connection.features else (),
            **msgspec.structs.asdict(ready_fields),
        )
        async with self._lifecycle.registered(connection):
            connection.push(ready)
            with self.access.watch(identity, connection) as validity:
                spoken = VoiceConnection(self._spoken, connection)
                refresh = partial(_refresh, validity, connection, ready)
                handler = FrameHandler(self._sessions, ready_fields.limits, refresh, spoken)
                limited = RateLimiter(handler, self.limiters)
                spoken.inner = limited
                decode = codec.decode_with_sound if AUDIO in connection.features else codec.decode
                try:
                    await connection.serve(limited, decode)
                finally:
                    spoken.inner = None  # breaks a cycle that only the collector would free


async def _refresh(
    validity: SessionValidity, connection: Connection, ready: Ready, frame: AuthRefresh
) -> None:
    """Send `ready` again if the new token is valid. Raises JwkSetUnavailable, StoreDown."""
    if await validity.refresh(frame.token, ref=frame.ref):
        connection.push(msgspec.structs.replace(ready, ref=frame.ref))


def _check_same(token: str | None, shown: str | None) -> None:
    """Raise Unauthenticated if a client's `hello` has another token than its handshake: one of them may be somebody else's."""
    if None not in (token, shown) and token != shown:
        raise Unauthenticated(
            "The token in hello differs from that in the Authorization header.", why="two tokens"
        )
