"""`GET /v1/responses` as a WebSocket: the handshake, and the life of a socket after it."""

from __future__ import annotations

import msgspec
from starlette.websockets import WebSocket

from connections.authentication.access import AccessControl
from connections.authentication.authenticator import bearer
from connections.authentication.identity import Identity
from connections.authentication.tickets import PREFIX as TICKET
from connections.http.refusals import Door
from connections.limits.caller import Caller, caller_of, client_id_of
from connections.limits.limiters import Limiters
from connections.line.connection import Connection
from connections.line.lines import Lines
from connections.line.outbox import Outbox
from connections.line.presence import Presence
from connections.line.socket import Socket
from connections.line.socket_door import OUTBOX_BYTES
from connections.openai.reception import Reception
from connections.openai.sockets import OpenAiSocketDoor
from connections.responses.asks import decode
from connections.responses.creating import Creator
from connections.responses.handler import SocketHandler, encode
from connections.wire.scopes import KeyScope


class Guest(msgspec.Struct, frozen=True):
    """The client of a socket."""

    identity: Identity
    caller: Caller


class ResponsesSocket(OpenAiSocketDoor[Guest]):
    """Serves sockets for one response after another, or several in lanes. `creator` begins them."""

    def __init__(
        self,
        *,
        creator: Creator,
        reception: Reception,
        access: AccessControl,
        presence: Presence,
        limiters: Limiters,
    ) -> None:
        super().__init__(Door.RESPONSES, access=access, limiters=limiters)
        self.creator = creator
        self._reception = reception
        self._presence = presence

    async def guest(self, websocket: WebSocket) -> Guest:
        """Return the client, by a key, a JWT, or a browser's ticket. Raises Refused."""
        authorization, ticket = websocket.headers.get("authorization"), websocket.query_params.get("ticket")
        token = ticket if ticket is not None and ticket.startswith(TICKET) else None
        identity = await self._reception.identity(authorization, token)
        identity.grant.check(KeyScope.CHAT)
        name = client_id_of(identity, bearer(authorization), websocket.scope)
        return Guest(identity, caller_of(identity, name, websocket.scope))

    async def serve(self, socket: Socket, guest: Guest) -> None:
        """Serve one socket. Raises Close, Disconnected."""
        connection = Connection(
            Lines(socket),
            caller=guest.caller,
            outbox=Outbox(max_bytes=OUTBOX_BYTES),
            encode=encode,
            tally=self.tally,
        )
        handler = SocketHandler(
            creator=self.creator, reception=self._reception, tally=self.tally, transport=socket
        )
        async with self._presence.of(connection):
            with self.access.inside(guest.identity, connection):
                await connection.serve(handler, decode)
