"""`GET /v1/responses` as a WebSocket: the handshake, and the life of a socket after it."""

from __future__ import annotations

import msgspec
from starlette.websockets import WebSocket

from connections.api.endpoint import ApiWebSocketEndpoint
from connections.api.request_context import RequestContext
from connections.authentication.access import AccessControl, bearer
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.connection import Connection
from connections.http.refusal_counters import EndpointName
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.manager import ConnectionLifecycle
from connections.outbox import Outbox
from connections.protocol.scopes import KeyScope
from connections.responses.client_events import decode
from connections.responses.creator import ResponseCreator
from connections.responses.websocket_handler import ResponsesSocketHandler, encode
from connections.websocket_endpoint import OUTBOX_BYTES, MultilineTransport, WebSocketTransport


class HandshakeInfo(msgspec.Struct, frozen=True):
    """The client of a socket."""

    identity: Identity
    caller: Caller


class ResponsesWebSocketEndpoint(ApiWebSocketEndpoint[HandshakeInfo]):
    """Serves sockets for one response after another, or several at once. `creator` begins them."""

    def __init__(
        self,
        *,
        creator: ResponseCreator,
        request_context: RequestContext,
        access: AccessControl,
        lifecycle: ConnectionLifecycle,
        limiters: Limiters,
    ) -> None:
        super().__init__(EndpointName.RESPONSES, access=access, limiters=limiters)
        self.creator = creator
        self._request_context = request_context
        self._lifecycle = lifecycle

    async def handshake_info(self, websocket: WebSocket) -> HandshakeInfo:
        """Return the client, by a key, a JWT, or a browser's ticket. Raises Refused."""
        authorization, ticket = websocket.headers.get("authorization"), websocket.query_params.get("ticket")
        token = ticket if ticket is not None and ticket.startswith(TICKET) else None
        identity = await self._request_context.identity(authorization, token)
        identity.grant.check(KeyScope.CHAT)
        name = client_id_of(identity, bearer(authorization), websocket.scope)
        return HandshakeInfo(identity, caller_of(identity, name, websocket.scope))

    async def serve(self, socket: WebSocketTransport, handshake_info: HandshakeInfo) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        connection = Connection(
            MultilineTransport(socket),
            caller=handshake_info.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=encode,
            tally=self.tally,
        )
        handler = ResponsesSocketHandler(
            creator=self.creator, request_context=self._request_context, tally=self.tally, transport=socket
        )
        async with self._lifecycle.of(connection):
            with self.access.watch(handshake_info.identity, connection):
                await connection.serve(handler, decode)
